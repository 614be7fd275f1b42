"""The check when a process of collectors starts: settings, cursors, the controller's clock.

If a setting breaks a guarantee, `refused` names it: the process must order nothing, and checks
again until the setting is corrected. All other findings are logged, once. `unchecked` says what was
not checked, and why: a check that could not run is no check that passed, and is repeated. What this
user may not see is logged as not checked, too, and the collectors order nevertheless: the order
does not depend on it, and `amcast topology apply` has checked it with its own user's rights. The
collectors start without waiting for this check, so a slow broker does not delay a take-over.
"""

from __future__ import annotations

import logging
from contextlib import closing

from collectors.doctor.finding import Check, Weight, refuse
from collectors.doctor.inspection import of_settings, overtaken_groups
from multicast.control import ControlReader
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin
from multicast.errors import AmcastError, TopicChanged, UncoveredInterest, UnsafeCluster
from multicast.settings import Settings

_log = logging.getLogger("amcast.collectors")


class StartCheck:
    """The check of one process; call `look` again until it returns True."""

    def __init__(self, chosen: Settings) -> None:
        self._chosen = chosen
        self.refused: str | None = None
        self.unchecked: str | None = "the cluster's settings are not checked yet"

    def look(self) -> bool:
        """Check once; True if the check was complete and refused nothing.

        Blocks until the brokers answer or time out.
        """
        try:
            self._look()
        except UncoveredInterest:  # no plan yet
            return False
        except (UnsafeCluster, TopicChanged) as error:
            if self.refused != str(error):
                _log.error("nothing is ordered: %s", error)
            self.refused, self.unchecked = str(error), None
            return False
        except AmcastError as error:
            failure = f"the cluster's settings could not be checked: {error}"
            if self.unchecked != failure:
                _log.warning("%s", failure)
            self.unchecked = failure
            return False
        self.refused = None
        return True

    def _look(self) -> None:
        chosen = self._chosen
        with closing(open_driver("kafka-python", chosen.bootstrap, chosen.client)) as driver:
            with closing(ControlReader(driver, chosen.topic)) as control:
                state = control.refresh()
            with Admin(chosen.bootstrap, chosen.client) as admin:
                results = of_settings(admin, state.plan())
                refuse(results)
                results += overtaken_groups(driver, admin, state)
        unseen = [each.says for each in results if each.check is Check.UNSEEN]
        self.unchecked = "not checked: " + "; ".join(unseen) if unseen else None
        for finding in results:
            if finding.check is Check.UNSEEN:
                _log.warning("not checked: %s", finding.says)
            elif finding.weight is Weight.WARN:
                _log.warning("%s", finding)
