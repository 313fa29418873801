from __future__ import annotations

import asyncio
import threading

import pytest

from quintet.serve.service import BusyError, TooSlowError, WorkPool


def test_results_and_errors_come_back() -> None:
    async def use() -> None:
        pool = WorkPool("test", threads=1, queue=1, timeout_s=5)
        assert await pool.run(lambda: 3) == 3
        with pytest.raises(TimeoutError):  # the work's own, not the pool's
            await pool.run(_time_out)
        assert pool.pending == 0
        pool.close()

    asyncio.run(use())


def test_work_beyond_threads_and_queue_is_refused_at_once() -> None:
    async def use() -> None:
        pool, gate = WorkPool("test", threads=2, queue=1, timeout_s=5), threading.Event()
        held = [asyncio.create_task(pool.run(gate.wait)) for _ in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(BusyError):
            await pool.run(lambda: None)
        gate.set()
        assert all(await asyncio.gather(*held))
        assert await pool.run(lambda: "again") == "again"
        pool.close()

    asyncio.run(use())


def test_a_stuck_thread_keeps_its_place_and_waiting_work_loses_it() -> None:
    async def use() -> None:
        pool, gate = WorkPool("test", threads=1, queue=1, timeout_s=0.1), threading.Event()
        ran: list[int] = []
        results = await asyncio.gather(pool.run(gate.wait), pool.run(lambda: ran.append(1)), return_exceptions=True)
        assert [type(result) for result in results] == [TooSlowError, TooSlowError]
        assert pool.pending == 1  # the stuck one
        gate.set()
        pool.close()
        assert pool.pending == 0
        assert not ran

    asyncio.run(use())


def test_time_that_was_spent_before_counts() -> None:
    async def use() -> None:
        pool, gate = WorkPool("test", threads=1, queue=1, timeout_s=60), threading.Event()
        with pytest.raises(TooSlowError):
            await asyncio.wait_for(pool.run(gate.wait, spent_s=60), 10)
        gate.set()
        pool.close()

    asyncio.run(use())


def _time_out() -> None:
    raise TimeoutError("of the work")
