"""What the tests of `lmrep doctor` share."""

from lmrep import doctor


def examined(config, directory=None, data_dir="/nowhere", **arguments) -> dict[str, doctor.Finding]:
    findings = doctor.examine(config, directory, data_dir, **arguments)
    assert all("\n" not in finding.text for finding in findings)
    return {finding.check: finding for finding in findings}


def failed(findings: dict[str, doctor.Finding]) -> dict[str, str]:
    return {name: finding.text for name, finding in findings.items() if finding.mark == doctor.FAILED}
