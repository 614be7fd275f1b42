"""The command `amcast` in the test's own process: to start Python costs more than most verbs do.

What a process of its own adds, tests/multicast/cli/test_main.py shows: closed streams, signals, the
exit code that a shell sees. `collectors run` has a process of its own.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import traceback

import pytest

from collectors.reconfiguration import apply, drain
from multicast.cli.main import main

PATIENCE_S = 240.0


def amcast(*arguments, env=None, stdin=None, cwd=None, patiently=False):
    """Run `amcast` to its end; gives its exit code, stdout and stderr as `subprocess.run` does.

    `env` is the whole environment that it sees, None: the test's own. `patiently` where collectors
    run that have to open in time: on a busy machine they may need longer than `apply` waits.
    """
    words = ["amcast", *map(os.fspath, arguments)]
    # The worker of `collectors run` reads its settings once, at its import; and what runs beside
    # others cannot have the process's streams.
    is_alone = threading.current_thread() is threading.main_thread()
    if words[1:3] == ["collectors", "run"] or not is_alone:
        return subprocess.run(
            [sys.executable, "-m", "multicast", *words[1:]], env=env, cwd=cwd, input=stdin or "",
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        if patiently:
            for module, names in ((apply, ["_OPENING_S"]), (drain, ["_READY_S", "_HELP_S"])):
                for name in names:
                    patch.setattr(module, name, PATIENCE_S)
        if env is not None:
            stack.callback(os.environ.update, dict(os.environ))
            stack.callback(os.environ.clear)
            os.environ.clear()
            os.environ.update(env)
        if cwd is not None:
            stack.enter_context(contextlib.chdir(cwd))
        # Files, not strings in memory: commands ask for descriptors.
        out, err, given = (
            stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(3)
        )
        given.write(stdin or "")
        given.seek(0)
        for name, value in {"argv": words, "stdin": given, "stdout": out, "stderr": err}.items():
            patch.setattr(sys, name, value)
        code = _ended()
        return subprocess.CompletedProcess(words, code, _written(out), _written(err))


def _ended():
    try:
        main()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
            return 1
        return ended.code or 0
    except Exception:  # noqa: BLE001 - as Python ends a process
        traceback.print_exc()
        return 1
    return 0


def _written(file):
    file.seek(0)
    return file.read()
