from __future__ import annotations

import resource

from gateway.worker import allow_many_files


def test_a_worker_may_open_as_many_files_as_the_system_lets_it() -> None:
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), most))

    try:
        allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
