"""Our report and Snakemake's, as a reader meets them: from synthetic results, opened in a browser, clicked through."""

import base64
import json
import re
import shutil
from pathlib import Path

import matplotlib.image
import pandas as pd
import pytest

import project_copy
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.errors import UserError
from entropy_dynamics.reporting import render
from entropy_dynamics.reporting.claims import write_claims
from entropy_dynamics.reporting.report import shown_in, write_report
from project_copy import copy_project
from synthetic_results import MODEL, ROOT, write_all

SCALE, SEEDS = "smoke", {"tables": 1, "extras": 1, "pilot": 1}
NAMES = ["table1", "figure5", "theory_check"]


def snakemake(project: Path, *arguments: str) -> str:
    run = project_copy.snakemake(project, *arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """Snakemake's report of a project with a table, two figures and the claims, from synthetic results."""
    project = copy_project(tmp_path_factory.mktemp("project"))
    path = project / f"configs/scale/{SCALE}.yaml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("experiments:")]
    path.write_text("\n".join([*lines, f"experiments: [{', '.join(NAMES)}]", ""]))
    results = project / "results" / SCALE
    write_all(results, SEEDS, SCALE, NAMES)
    source = Results(results, SCALE, SEEDS, project / "configs", project / "experiments")
    write_claims(source)
    for name in NAMES:
        render(name, source)
    write_report(source)
    # All other outputs of the workflow need only exist.
    for line in snakemake(project, "--summary").splitlines()[1:]:
        file = project / line.split("\t")[0]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    snakemake(project, "--touch")
    snakemake(project, "--report", "report.html")
    return project / "report.html"


@pytest.fixture
def browser(monkeypatch):
    """Headless Chromium, driven through Debian's own chromedriver; nothing is downloaded."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if not (driver and chromium):
        pytest.skip("needs the Debian packages chromium and chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver")
    monkeypatch.setenv("SE_OFFLINE", "true")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "SEVERE"})
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    browser.implicitly_wait(10)
    yield browser
    browser.quit()


def click(browser, xpath: str) -> None:
    browser.find_element("xpath", xpath).click()


def choose(browser, category: str) -> None:
    """From wherever one is, back home and into a category."""
    click(browser, "//nav//ol/li[1]/a")
    click(browser, f"//nav//a[span[normalize-space()='{category}']]")


def row_of(label: str) -> str:
    return f"//nav//tr[td[starts-with(normalize-space(), '{label}')]]"


def test_a_reader_clicks_through_to_a_table_and_a_figure(report, browser):
    screenshots = ROOT / "build" / "report"
    screenshots.mkdir(parents=True, exist_ok=True)
    results = report.parent / "results" / SCALE
    claims = json.loads((results / "claims.json").read_text())
    browser.get(report.as_uri())
    # The menu slides from width to width: a click would go to where a button was a moment ago.
    still = "const s = document.createElement('style'); s.textContent = '* {transition: none !important}'"
    browser.execute_script(f"{still}; document.head.append(s)")
    assert "smoke scale" in browser.find_element("id", "app").text
    assert [one.text for one in browser.find_elements("xpath", "//nav//li/a/span") if one.text[:1].isdigit()] == [
        "1 Claims",
        "2 Tables",
        "3 Figures",
        "4 Further",
        "5 Runs",
    ]
    browser.save_screenshot(str(screenshots / "start.png"))
    click(browser, "//a[text()='1 Claims']")  # in the text, not in the menu
    click(browser, row_of("All claims, tables and figures") + "//a[1]")
    browser.switch_to.frame(browser.find_element("tag name", "iframe"))
    counts = [int(one.text) for one in browser.find_elements("xpath", "//ul[@class='counts']//b")]
    assert sum(counts) == sum(one["subject"] == "this run" for one in claims)
    shown = " ".join(browser.find_element("tag name", "body").text.split())
    score = pd.read_csv(results / "tables/table1.csv").set_index(["model", "method"]).loc[(MODEL, "base")]
    assert f"{score.dapo500_avg:.1f} [{score.dapo500_avg_low:.1f}, {score.dapo500_avg_high:.1f}]" in shown
    assert "paper 49.68" in shown
    assert "toy Qwen2 for Qwen2.5-7B-Instruct" in shown
    browser.switch_to.default_content()
    browser.save_screenshot(str(screenshots / "page.png"))

    choose(browser, "2 Tables")
    markdown = browser.find_element("xpath", row_of("Table 1. ") + "//a[1]").get_attribute("href")
    assert base64.b64decode(markdown.partition(",")[2]) == (results / "tables/table1.md").read_bytes()

    for category, label, name, caption in [
        ("3 Figures", "Figure 5. ", "figure5", "(Corollary 4)"),
        ("4 Further", "Predicted and realized", "theory_check", "the identity line holds for all"),
    ]:
        choose(browser, category)
        click(browser, row_of(label) + "//a[1]")
        image = browser.find_element("xpath", "//img[starts-with(@src, 'data:image/png')]")
        size = browser.execute_script("return [arguments[0].naturalWidth, arguments[0].naturalHeight]", image)
        assert size == list(matplotlib.image.imread(results / f"figures/{name}.png").shape[1::-1])
        click(browser, row_of(label) + "//a[2]")  # the caption
        assert caption in " ".join(browser.find_element("xpath", "//nav//li[p]").text.split())
        browser.save_screenshot(str(screenshots / f"{name}.png"))

    choose(browser, "5 Runs")
    click(browser, f"//nav//a[span[normalize-space()='{MODEL}']]")
    assert "clip_b, seed 0" in browser.find_element("xpath", "//nav//tbody").text
    browser.save_screenshot(str(screenshots / "runs.png"))

    fetched = browser.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert [name for name in fetched if name.startswith("http")] == []  # it opens without a network
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_the_report_holds_every_result_and_caption_without_a_browser_too(report):
    text = report.read_text()
    for file in ("report.html", "claims.png", "tables/table1.md", "figures/figure5.png", "figures/theory_check.png"):
        assert f'"results/{SCALE}/{file}": {{"name"' in text
    assert "the identity line holds for all" in " ".join(text.replace("\\n", " ").split())


# ---------------------------------------------------------------- our own page


@pytest.fixture
def page(report) -> Path:
    return report.parent / "results" / SCALE / "report.html"


def test_the_page_starts_with_the_verdicts_and_every_link_leads_somewhere(page):
    claims = [one for one in json.loads((page.parent / "claims.json").read_text()) if one["subject"] == "this run"]
    text = page.read_text()
    for verdict in ("holds", "does not hold", "inconclusive"):
        assert f'<b class="{verdict}">{sum(one["verdict"] == verdict for one in claims)}</b>' in text
    for name in NAMES:
        assert f'<section id="{name}">' in text
    targets, files = re.findall(r'href="#([^"]+)"', text), re.findall(r'href="([^"#:]+)"', text)
    assert set(NAMES) <= set(targets)
    assert len(files) > len(NAMES)
    for target in targets:
        assert f'id="{target}"' in text
    for file in files:
        assert (page.parent / file).is_file()
    score = pd.read_csv(page.parent / "tables/table1.csv").set_index(["model", "method"]).loc[(MODEL, "base")]
    shown = re.search(r'<section id="table1">.*?</section>', text, re.DOTALL)[0]
    interval = f"[{score.dapo500_avg_low:.1f}, {score.dapo500_avg_high:.1f}]"
    assert f"{score.dapo500_avg:.1f} <i>{interval}</i>" in shown


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("Section 5.2, Figure 1(a)", ["figure1"]),
        ("Section 5.3, Figures 2(c) and 6(c)", ["figure2", "figure6"]),
        ("Section 3.2, Corollary 2; Section 5.2, Figure 3", ["figure3"]),
        ("Section 3.1, Theorem 1", ["theory_check"]),
        ("ours, after Section 3.2, Corollary 4", ["corollary4"]),
        ("Appendix E.3, Table 3", ["table3"]),
    ],
)
def test_a_place_in_the_paper_names_what_shows_it(place, names):
    assert shown_in(place) == names


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_a_phone_and_a_desktop(page, browser, width):
    # A headless window is at least 500 pixels wide, an emulated screen is not.
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    sizes = "return [...document.images].map(image => image.naturalWidth)"
    assert len(widths := browser.execute_script(sizes)) >= 3
    assert all(widths)
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_a_page_before_there_are_claims_is_one_line(tmp_path):
    with pytest.raises(UserError, match=rf"no .*claims\.json; make it with: snakemake claims --config scale={SCALE}"):
        write_report(Results(tmp_path, SCALE, SEEDS))
