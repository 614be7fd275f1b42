"""What a test needs that the README's set-up cannot bring without root: `@pytest.mark.needs(…)`.

    needs("promtool")        a program, by its name
    needs("networks")        network namespaces, as `bench/nemesis/network.py` makes them
    needs("jdk")             a complete JDK (not only a JRE) of version 17 or newer
    needs("history")         a checkout with its commits

Where it is missing, the test is skipped, and the last lines of the run say so.
"""

import functools
import shutil
import subprocess

from bench.nemesis.network import obstacle
from multicast.local.jars import JavaMissing, find_java

PACKAGES = {"promtool": "prometheus", "chromedriver": "chromium-driver", "go": "golang-go"}
FROM_ELSEWHERE = {"npm": "install Node.js with npm", "helm": "make .helm/helm"}


@functools.cache
def missing(what: str) -> str | None:
    """Say what is missing and how it is installed; None if it is there."""
    if what == "networks":
        return obstacle()
    if what == "jdk":
        return _missing_jdk()
    if what == "history":
        asked = ["git", "rev-parse", "--is-shallow-repository"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        return None if said == "false\n" else "no history: git fetch --unshallow"
    if shutil.which(what):
        return None
    return f"no {what}: {FROM_ELSEWHERE.get(what) or f'apt-get install {PACKAGES.get(what, what)}'}"


def _missing_jdk() -> str | None:
    try:
        java = find_java()
    except JavaMissing as error:
        return str(error)
    listed = subprocess.run(
        [java.home / "bin/java", "--list-modules"], capture_output=True, text=True, check=False
    ).stdout
    if "jdk.compiler@" in listed and "jdk.incubator.vector@" in listed:
        return None
    return f"{java.home} is not a complete JDK: apt-get install openjdk-17-jdk-headless"
