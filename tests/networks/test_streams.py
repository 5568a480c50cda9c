"""The stream of a policy, whose turn with torch's global generator it is."""

from __future__ import annotations

import threading

import torch

from flowrl.networks.torch_rng import TorchStream


def test_the_streams_of_two_threads_do_not_mix() -> None:
    """D6: a learner in a thread draws from its own stream, and leaves the global generator as it was."""
    before = torch.get_rng_state()
    there, here = TorchStream(1), TorchStream(2)
    drawn: list[torch.Tensor] = []

    def learn() -> None:
        with there.swapped_in():
            drawn.append(torch.rand(3))

    thread = threading.Thread(target=learn)
    with here.swapped_in():
        thread.start()
        thread.join(0.1)
        own = torch.rand(3)
    thread.join(10)
    assert torch.equal(torch.get_rng_state(), before)
    for seed, numbers in ((1, drawn[0]), (2, own)):
        with TorchStream(seed).swapped_in():
            assert torch.equal(torch.rand(3), numbers)


def test_a_thread_waits_for_the_end_of_anothers_block() -> None:
    """D6: what it would put back afterwards is the other's state, and no longer the process's."""
    entered, leave = threading.Event(), threading.Event()

    def learn() -> None:
        with TorchStream(1).swapped_in():
            entered.set()
            leave.wait(10)

    def act() -> None:
        with TorchStream(2).swapped_in():
            acted.set()

    acted = threading.Event()
    threads = [threading.Thread(target=learn), threading.Thread(target=act)]
    threads[0].start()
    assert entered.wait(10)
    threads[1].start()
    assert not acted.wait(0.1)
    leave.set()
    assert acted.wait(10)
    for thread in threads:
        thread.join(10)
