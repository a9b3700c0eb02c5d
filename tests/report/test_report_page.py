"""Our report and Snakemake's, as a reader meets them: from synthetic results, opened in a browser, clicked through."""

import base64
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import matplotlib.image
import pandas as pd
import pytest
import torch

import project_copy
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.errors import UserError
from entropy_dynamics.report import render
from entropy_dynamics.report.page import write_report
from entropy_dynamics.report.verdicts import write_claims
from entropy_dynamics.report.watch import open_server
from entropy_dynamics.results.files import write_text
from entropy_dynamics.results.token_samples import STATISTICS, write_token_samples
from fault_harness import wait_until
from project_copy import copy_project
from synthetic_results import MODEL, write_all

SCALE, SEEDS = "smoke", {"tables": 1, "extras": 1, "pilot": 1}
NAMES = ["table1", "figure5", "theory_check"]


def snakemake(project: Path, *arguments: str) -> str:
    run = project_copy.snakemake(project, *arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def results_of(project: Path, folder: Path, seeds=SEEDS) -> Results:
    return Results(folder, SCALE, seeds, project / "configs", project / "experiments")


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """Snakemake's report of a project with a table, two figures and the claims, from synthetic results."""
    project = copy_project(tmp_path_factory.mktemp("project"))
    path = project / f"configs/scale/{SCALE}.yaml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("experiments:")]
    path.write_text("\n".join([*lines, f"experiments: [{', '.join(NAMES)}]", ""]))
    results = project / "results" / SCALE
    write_all(results, SEEDS, SCALE, NAMES)
    source = results_of(project, results)
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


def row_of_table(results: Path, method: str) -> pd.Series:
    table = pd.read_csv(results / "tables/table1.csv").set_index(["model", "method"])
    return table.loc[(MODEL, method)]


def row_of(label: str) -> str:
    return f"//nav//tr[td[starts-with(normalize-space(), '{label}')]]"


def test_a_reader_clicks_through_to_a_table_and_a_figure(report, browser):
    results = report.parent / "results" / SCALE
    claims = json.loads((results / "claims.json").read_text())
    browser.get(report.as_uri())
    # The menu slides from width to width: a click would go to where a button was a moment ago.
    still = "const s = document.createElement('style'); s.textContent = '* {transition: none !important}'"
    browser.execute_script(f"{still}; document.head.append(s)")
    assert "smoke scale" in browser.find_element("id", "app").text
    entries = [one.text for one in browser.find_elements("xpath", "//nav//li/a/span")]
    numbered = [text for text in entries if text[:1].isdigit()]
    assert numbered == ["1 Claims", "2 Tables", "3 Figures", "5 Runs"]
    click(browser, "//a[text()='1 Claims']")  # in the text, not in the menu
    click(browser, row_of("All claims, tables and figures") + "//a[1]")
    browser.switch_to.frame(browser.find_element("tag name", "iframe"))
    counts = [int(one.text) for one in browser.find_elements("xpath", "//ul[@class='counts']//b")]
    assert sum(counts) == sum(one["subject"] == "this run" for one in claims)
    click(browser, "//section[@id='table1']//summary")
    shown = " ".join(browser.find_element("tag name", "body").text.split())
    score = row_of_table(results, "base")
    assert f"{score.dapo500_avg:.1f} [{score.dapo500_avg_low:.1f}, {score.dapo500_avg_high:.1f}]" in shown
    assert "49.68 (+1.65)" in shown
    assert "toy Qwen2 for Qwen2.5-7B-Instruct" in shown
    browser.switch_to.default_content()

    choose(browser, "2 Tables")
    markdown = browser.find_element("xpath", row_of("Table 1. ") + "//a[1]").get_attribute("href")
    assert base64.b64decode(markdown.partition(",")[2]) == (results / "tables/table1.md").read_bytes()

    for label, name, caption in (
        ("Figure 5. ", "figure5", "(Corollary 4)"),
        ("Predicted and realized", "theory_check", "the identity line holds for all"),
    ):
        choose(browser, "3 Figures")
        click(browser, row_of(label) + "//a[1]")
        image = browser.find_element("xpath", "//img[starts-with(@src, 'data:image/png')]")
        size = browser.execute_script("return [arguments[0].naturalWidth, arguments[0].naturalHeight]", image)
        assert size == list(matplotlib.image.imread(results / f"figures/{name}.png").shape[1::-1])
        click(browser, row_of(label) + "//a[2]")  # the caption
        assert caption in " ".join(browser.find_element("xpath", "//nav//li[p]").text.split())

    choose(browser, "5 Runs")
    click(browser, f"//nav//a[span[normalize-space()='{MODEL}']]")
    assert "clip_b, seed 0" in browser.find_element("xpath", "//nav//tbody").text

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
    for name, element in zip(NAMES, ("section", "details", "details"), strict=True):
        assert f'<{element} id="{name}">' in text
    targets, files = re.findall(r'href="#([^"]+)"', text), re.findall(r'href="([^"#:]+)"', text)
    assert {"table1", "samples", "claims", "further"} - set(targets) <= {"samples"}
    assert len(files) > len(NAMES)
    for target in targets:
        assert f'id="{target}"' in text
    for file in files:
        assert (page.parent / file).is_file()
    score = row_of_table(page.parent, "base")
    shown = re.search(r'<section id="table1">.*?</section>', text, re.DOTALL)[0]
    interval = f"[{score.dapo500_avg_low:.1f}, {score.dapo500_avg_high:.1f}]"
    assert f"{score.dapo500_avg:.1f} <i>{interval}</i>" in shown
    assert "median difference per seed" not in shown  # of one seed
    assert "95 % over seeds" not in text


@pytest.mark.parametrize("width", [390, 1280])
def test_no_heading_is_hidden_and_no_picture_cut_at_its_sides(page, browser, width):
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())
    widths = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    assert len(set(browser.execute_script(widths))) == 1
    below = "return document.getElementById(arguments[0]).getBoundingClientRect().top - "
    below += "document.querySelector('nav').getBoundingClientRect().bottom"
    for link in browser.find_elements("css selector", "nav a"):
        link.click()
        assert browser.execute_script(below, link.get_attribute("hash")[1:]) > 0
    shapes = "of => [of.width / of.height, of.naturalWidth / of.naturalHeight]"
    pictures = browser.execute_script(f"return [...document.querySelectorAll('.gallery img')].map({shapes})")
    assert len(pictures) == 2
    for shown, whole in pictures:
        assert shown == pytest.approx(max(whole, 4 / 3), rel=0.02)  # a tall one is cut off below


def test_tuned_baselines_stand_second_and_table_1_has_scores_and_gains_first(page, tmp_path):
    seeds = SEEDS | {"tables": 3}
    source = results_of(page.parents[2], tmp_path / SCALE, seeds)
    write_all(source.root, seeds, SCALE, ["table1"])
    render("table1", source)
    for name in ("left", "learning"):
        write_text(source.layout.figure(name, "svg"), "<svg/>")
    text = write_report(source).read_text()
    assert re.findall(r'<section id="(\w+)"', text) == ["learning", "left", "table1"]
    assert "intervals are 95 % over seeds" in text
    compact, full = re.findall(r"<table>.*?</table>", text, re.DOTALL)[:2]
    row = row_of_table(source.root, "clip_b")
    gain = f"{row.dapo500_avg_difference:+.1f}".replace("-", "−")
    assert re.search(rf'<td>{row.dapo500_avg:.1f} <i class="gain( clear)?">{re.escape(gain)}</i></td>', compact)
    assert "[" not in compact
    assert f"[{row.dapo500_avg_low:.1f}, {row.dapo500_avg_high:.1f}]" in full


def test_a_page_without_results_is_one_line(tmp_path):
    with pytest.raises(UserError, match=rf"no folder .*none; make it with: snakemake --config scale={SCALE}"):
        write_report(Results(tmp_path / "none", SCALE, SEEDS))


# ---------------------------------------------------------------- while runs go on, and their tokens
STEPS = "{} 3/10  entropy 0.500  accuracy 0.100  9 s left\n{} 6/10  entropy 0.250  accuracy 0.400  4 s left\n"


@pytest.fixture
def live(page, tmp_path) -> Results:
    """Table 1 without verdicts, and samples of two runs; a third run trains, a fourth has stopped."""
    source = results_of(page.parents[2], tmp_path / SCALE)
    write_all(source.root, SEEDS, SCALE, ["table1"])
    render("table1", source)
    layout, random = source.layout, torch.Generator().manual_seed(0)
    for method, count in (("grpo", 1), ("clip_b", 3)):
        for step in range(count):
            values = {name: torch.randn(4, 5, generator=random) for name in (*STATISTICS, "advantage", "weight")}
            write_token_samples(
                layout.step_samples(MODEL, method, 0) / f"step{step}.parquet",
                torch.tensor([0, 0, 1, 1]),
                torch.tensor([[True] * 5, [True] * 4 + [False]] * 2),
                torch.arange(20).reshape(4, 5),
                SimpleNamespace(**values),
                values["advantage"],
                (values["weight"] > (0 if step < 2 else -9)).float(),
                lambda token: f"<b>{token}" if token == 3 else f"t{token}",
                lambda row: {"prompt": f"prompt {row // 2}", "correct": row == 0},
            )
    for seed in (7, 8):
        log = layout.log("runs", MODEL, "clip_v", f"{seed}")
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(STEPS.replace("{}", f"{MODEL} clip_v seed {seed}"))
    os.utime(log, (0, 0))
    return source


def test_a_page_before_there_are_verdicts_shows_the_runs_that_go_on(live):
    text = write_report(live).read_text()
    assert "No verdicts yet" in text
    opening, _, below = text.partition("No verdicts yet")
    assert re.search(r"Toy models of [\d.]+( to [\d.]+)? M parameters stand in for the paper's", opening)
    assert "toy Qwen2 for Qwen2.5-7B-Instruct, " in below
    assert not re.search("claims hold|All tables and figures|>Claims", text)  # nothing that is still empty
    left, total = map(int, re.search(r"Training now \((\d+) of (\d+) runs left\)", text).groups())
    runs = {run.path for run in live.experiment("table1").runs if run.method != "base"}
    assert total >= len(runs)
    assert total - left == sum(live.layout.metrics(*run).is_file() for run in runs)
    assert f"clip_v, seed 7, {MODEL}: step 6 of 10</h3>" in text
    assert f"clip_v, seed 8, {MODEL}: step 6 of 10, stopped</h3>" in text
    assert 'points="30.0,1.0 60.0,20.0"' in text  # half the entropy is half the height, 38
    assert "entropy 0.25 nats" in text
    assert '<section id="table1">' in text
    (tokens,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert "<" not in tokens  # so no token of a response can end the element
    assert any("<b>3" in of["t"] for run in json.loads(tokens) for step in run["steps"].values() for of in step)


def test_a_token_shows_the_numbers_of_its_file(live, browser):
    from selenium.webdriver.common.keys import Keys

    browser.get(write_report(live).as_uri())
    chosen = {name: browser.find_element("css selector", f"select[name={name}]") for name in ("method", "step")}
    assert chosen["method"].get_attribute("value") == "clip_b"
    assert chosen["step"].get_attribute("value") == "1"  # the last with a dropped token
    for button, step in (("next", "2"), ("next", "0"), ("previous", "2")):
        browser.find_element("xpath", f"//button[starts-with(text(), '{button}')]").click()
        assert chosen["step"].get_attribute("value") == step
    for method, step in (("clip_b", 0), ("grpo", 0)):
        for name, value in (("method", method), ("step", step)):
            select = browser.find_element("css selector", f"select[name={name}]")
            select.find_element("css selector", f"option[value='{value}']").click()
        rows = pd.read_parquet(live.layout.step_samples(MODEL, method, 0) / f"step{step}.parquet")
        responses = browser.find_elements("css selector", ".response")
        assert [len(one.find_elements("css selector", "code span")) for one in responses] == [5, 4, 5, 4]
        assert "wrong" in responses[2].text
        assert "prompt 1" in responses[2].find_element("xpath", "ancestor::*[@class='prompt']").text
        for place, row in ((0, 3), (3, 1)):
            token, sample = responses[place].find_elements("css selector", "code span")[row], rows.iloc[place]
            token.click()
            shown = browser.find_element("id", "token").text
            assert sample["token"][row] in shown
            for label, name in (("log p", "logp"), ("H", "entropy"), ("S*", "s_star"), ("E[S]", "s_expected")):
                assert f"{label} {float(f'{sample[name][row]:.4g}'):g}," in shown.replace("−", "-")
            push = -sample["advantage"][row] * (sample["s_star"][row] - sample["s_expected"][row])
            classes = token.get_attribute("class").split()
            assert classes[0] == ("raises" if push > 0 else "lowers")
            assert ("dropped" in classes) == (sample["weight"][row] == 0)
    token.send_keys(Keys.ARROW_RIGHT)
    assert f"“{rows.iloc[3]['token'][2]}”" in browser.find_element("id", "token").text
    browser.find_element("css selector", "input[name=text]").send_keys("prompt 1")
    assert len(browser.find_elements("css selector", ".response")) == 2
    assert browser.find_element("id", "most").text.startswith("2 of 4 responses.")
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_a_table_on_the_page_has_the_seeds_that_there_are(live):
    assert "seeds so far" not in write_report(live).read_text()
    more = replace(live, seeds=SEEDS | {"tables": 3})
    assert "<b>1 of 3 seeds so far, no interval.</b>" in write_report(more).read_text()


def test_only_countdown_can_be_asked(live):
    """Of a training set in a file, no problem can be graded without its answer."""
    assert '<form id="ask"' in write_report(live).read_text()
    scale = live.configs / f"scale/{SCALE}.yaml"
    text = scale.read_text()
    scale.write_text(text.replace("train: {size: 240}", "train: {source: file, path: mine.jsonl, task: math}"))
    page = write_report(replace(live)).read_text()
    scale.write_text(text)
    assert "Samples, token by token" in page
    assert "Ask two policies" not in page
    assert 'getElementById("ask")' not in page


def canned(query):
    """An answer of three tokens, the second dropped; an error for another problem."""
    if query["problem"] != "1,2=3":
        raise UserError("no such problem")
    numbers = {key: [-0.5, 0.25, 0.1] for key in "phsea"}
    return [{"prompt": query["problem"], "correct": True, "t": ["1", "+", "2"], "w": [1, 0, 1]} | numbers]


@pytest.fixture
def watched(live):
    server = open_server(live, 0, canned)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_watch_rewrites_the_page_for_this_machine_only(live, watched, monkeypatch):
    assert watched.server_address[0] == "127.0.0.1"
    address = f"http://127.0.0.1:{watched.server_port}"
    log = live.layout.log("runs", MODEL, "clip_v", "7")
    log.write_text(log.read_text().replace(" 6/10", " 9/10"))
    with urlopen(address) as page:
        assert "seed 7, " + MODEL + ": step 6 of 10" in page.read().decode()  # it has just been written
    monkeypatch.setattr("entropy_dynamics.report.watch.EVERY_SECONDS", 0.0)
    with urlopen(f"{address}/report.html") as page:
        assert "seed 7, " + MODEL + ": step 9 of 10" in page.read().decode()
    with urlopen(f"{address}/tables/table1.csv") as table:
        assert table.read() == (live.layout.root / "tables/table1.csv").read_bytes()
    hosts = {"elsewhere.example:80": 403, "": 403, "[": 403, "127.0.0.1": 200, "LOCALHOST:80": 200}
    for host, expected in hosts.items():
        try:  # a browser leaves port 80 out
            status = urlopen(Request(address, headers={"Host": host})).status
        except HTTPError as error:
            status = error.code
        assert status == expected, host
    with pytest.raises(UserError, match=f"port {watched.server_port} of 127.0.0.1 cannot be opened"):
        open_server(live, watched.server_port, canned)


def test_a_reader_asks_two_policies(live, watched, browser):
    browser.get(f"http://127.0.0.1:{watched.server_port}/report.html")
    form = browser.find_element("id", "ask")
    problem, button = (form.find_element("css selector", name) for name in ("input", "button"))
    problem.send_keys("1,2=3")
    button.click()
    wait_until(lambda: len(form.find_elements("css selector", ".response")) == 2)
    titles = [title.text for title in form.find_elements("css selector", ".prompt > b")]
    assert titles == [f"{method}, seed 0, {MODEL}: 1,2=3" for method in ("grpo", "clip_b")]
    tokens = form.find_elements("css selector", ".response code span")
    assert [token.text for token in tokens] == ["1", "+", "2"] * 2
    assert ["dropped" in token.get_attribute("class") for token in tokens] == [False, True, False] * 2
    tokens[1].click()
    assert "“+”" in browser.find_element("id", "token").text
    problem.send_keys("4")
    button.click()
    wait_until(lambda: form.find_element("id", "answers").text == "no such problem")
