"""The tables of `accelerator.py`."""

SIDES = "lmrep", "transformers"


def markdown(results):
    """All results, as the JSON file has them, as Markdown."""
    rate = results["matrix_rate"].get("used")
    lines = [f"# {results['device']}, bfloat16, {results['date']}", ""]
    if results["trial"]:
        lines += ["A trial of the script: tiny networks, or no accelerator. These are no measurements.", ""]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    lines += [f"{results['host']}; {versions}.",
              "Matrix rate: " + (f"{rate / 1e12:.3g} TFLOP/s" if rate else "not measured") +
              f", bfloat16 products of {results['matrix_rate']['size']:,} x {results['matrix_rate']['size']:,}. "
              f"{results['seconds']:.0f} of at most {results['budget']:.0f} seconds.", "", *_cases(results), ""]
    return "\n".join(lines + _checks(results["checks"]))


def _cases(results):
    """The lines of the table of cases."""
    lines = ["| case | batch | attention | lmrep, ms | transformers, ms | lmrep, tokens/s | transformers, tokens/s "
             "| ratio | lmrep, of the matrix rate | transformers | rounds |", "| --- " * 11 + "|"]
    for case in results["cases"]:
        cells = [case["case"], case["batch"], case.get("attention", "")]
        cells += [_milliseconds(case, side) for side in SIDES]
        for field, form in (("tokens_per_second", ",.0f"), (None, ""), ("utilisation", ".0%")):
            cells += [_number(case["ratio"], ".2f")] if field is None else [
                _number(case[side].get(field) if side in case else None, form) for side in SIDES]
        dropped = f" of {case['wanted']}" if case["rounds"] < case["wanted"] else ""
        lines.append("| " + " | ".join([*cells, f"{case['rounds']}{dropped}"]) + " |")
    if any(case["rounds"] < case["wanted"] for case in results["cases"]):
        lines += ["", "Where it says so, rounds were dropped to stay within the time, or because both failed."]
    return lines


def _milliseconds(case, side):
    """The median with minimum and maximum, or why there is none."""
    if side in case["failed"]:
        return "failed: " + _escaped(case["failed"][side])
    low, middle, high = (1000 * case[side][name] for name in ("fastest", "median", "slowest"))
    return f"{middle:.4g} ({low:.4g} to {high:.4g})"


def _number(value, form):
    return "" if value is None else format(value, form)


def _checks(checks):
    """The lines of the table of checks."""
    if not checks:
        return ["No checks were made."]
    lines = ["| check | result | details |", "| --- | --- | --- |"]
    for check in checks:
        result = "passed" if check["passed"] else "FAILED"
        lines.append(f"| {check['name']} | {result} | {_escaped(check['detail'])} |")
    return lines


def _escaped(text):
    """Text for a cell of a table."""
    return text.replace("|", "\\|")
