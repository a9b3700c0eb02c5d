"""Tables, figures and claims, from the YAML files of experiments/: no pandas, no torch."""
