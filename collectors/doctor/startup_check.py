"""What a process of collectors looks at when it starts: settings, cursors, the controller's clock.

A setting that breaks a guarantee is refused: `refused` says which, nothing is to be ordered, and it
is looked at again until somebody mended it. The rest is logged, once. What this user may not see
is logged as not checked, and collectors order all the same: the order does not depend on it, and
`apply`, whose user may see it, has refused what breaks a guarantee. A start waits for none of this:
who takes over from a dead collector must not wait for a broker that is slow to answer.
"""

from __future__ import annotations

import logging

from collectors.doctor.checks import Check, Weight, refuse
from collectors.doctor.inspection import of_settings, overtaken_groups
from multicast.control import ControlReader
from multicast.drivers import open_driver
from multicast.drivers.kafka_python import Admin
from multicast.errors import AmcastError, TopicChanged, UncoveredInterest, UnsafeCluster
from multicast.settings import Settings

_log = logging.getLogger("amcast.collectors")


class StartCheck:
    """Looks until it could see everything, and nothing was to be refused."""

    def __init__(self, chosen: Settings) -> None:
        self._chosen = chosen
        self.refused: str | None = None
        self._failure = ""

    def look(self) -> bool:
        """Look once; whether that was enough. Blocks for as long as the brokers take."""
        try:
            self._look()
        except UncoveredInterest:  # no plan yet
            return False
        except (UnsafeCluster, TopicChanged) as error:
            if self.refused != str(error):
                _log.error("nothing is ordered: %s", error)
            self.refused = str(error)
            return False
        except AmcastError as error:
            if self._failure != str(error):
                _log.warning("the cluster's settings could not be checked: %s", error)
            self._failure = str(error)
            return False
        self.refused = None
        return True

    def _look(self) -> None:
        chosen = self._chosen
        driver = open_driver("kafka-python", chosen.bootstrap, chosen.client)
        try:
            control = ControlReader(driver, chosen.topic)
            try:
                state = control.refresh()
            finally:
                control.close()
            with Admin(chosen.bootstrap, chosen.client) as admin:
                found = of_settings(admin, state.plan())
                refuse(found)
                found += overtaken_groups(driver, admin, state)
        finally:
            driver.close()
        for one in found:
            if one.check is Check.UNSEEN:
                _log.warning("not checked: %s", one.says)
            elif one.weight is Weight.WARN:
                _log.warning("%s", one)
