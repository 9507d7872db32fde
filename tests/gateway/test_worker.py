from __future__ import annotations

import gc
import resource

from gateway.worker import allow_many_files, settle_memory


def test_a_worker_may_open_as_many_files_as_the_system_lets_it() -> None:
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), most))

    try:
        allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))


def test_what_was_there_at_the_start_is_not_looked_through_again() -> None:
    before = gc.get_threshold()
    try:
        settle_memory()
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
