# SPDX-License-Identifier: GPL-2.0-or-later
import os
import select
import signal

import pytest

from guard.base.watch import Watch


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_stop_is_noted_and_wakes_a_poll(number: int) -> None:
    with Watch() as watch:
        assert not watch.is_stopped()
        os.kill(os.getpid(), number)
        assert select.select([watch.fd], [], [], 120)[0]
        assert watch.is_stopped()
        watch.drain()
        assert not select.select([watch.fd], [], [], 0)[0]


def test_the_end_of_a_child_wakes_a_poll_and_stops_nothing() -> None:
    with Watch() as watch:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        assert select.select([watch.fd], [], [], 120)[0]
        os.waitpid(pid, 0)
        assert not watch.is_stopped()


def test_the_handlers_that_were_there_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)]
    with Watch():
        pass
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)] == before


def test_a_signal_that_was_ignored_on_entry_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Watch() as watch:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not watch.is_stopped()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_that_were_blocked_on_entry_are_let_in() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    with Watch() as watch:
        os.kill(os.getpid(), signal.SIGTERM)
        assert watch.is_stopped()
