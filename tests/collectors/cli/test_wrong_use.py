"""Wrong options and settings of operators' commands: one sentence, and exit code 2."""

import pytest

from tests.helpers.system import amcast

NOWHERE = ("-b", "127.0.0.1:1")
RUN = ("collectors", "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "environment", "sentence"),
    [
        ((*RUN, *NOWHERE, "--log-level", "loud"), {}, "'loud' is not one of 'crit', 'error'"),
        ((*RUN, *NOWHERE), {"AMCAST_WEB_HOST": ""}, "AMCAST_WEB_HOST is ''; it has to be"),
        pytest.param(
            (*RUN, *NOWHERE), {"AMCAST_WEB_HOST": "a b"}, "AMCAST_WEB_HOST is 'a b'; it has to be",
            marks=pytest.mark.campaign,
        ),
        ((*RUN, *NOWHERE, "-t", "no such"), {}, "topic 'no such' is not a valid name"),
        (("topology", "apply", "x", "--timeout", "nan"), {}, "Invalid value for '--timeout'"),
        (("topology", "apply", "x", "--timeout", "-5"), {}, "Invalid value for '--timeout'"),
        (("doctor", *NOWHERE, "--patience", "inf"), {}, "Invalid value for '--patience'"),
    ],
)  # fmt: skip
def test_a_wrong_option_or_setting_is_named(words, environment, sentence):
    done = amcast(*words, env=environment)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.campaign
def test_brokers_with_an_impossible_port_do_not_answer():
    done = amcast(*RUN, "-b", "127.0.0.1:99999", env={"AMCAST_WEB_PORT": "0"})
    assert done.returncode == 4
    assert "amcast: No broker at 127.0.0.1:99999 answered" in done.stderr
    assert "Traceback" not in done.stderr
