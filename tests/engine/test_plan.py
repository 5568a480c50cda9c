"""Plans: what the verbs give, what is refused when a plan is built, and edits by name."""

from __future__ import annotations

import math
import queue
import sys
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from flowrl import Plan, Queue, from_items, from_workers, operator
from flowrl.engine.transforms import Take
from flowrl.errors import PlanError
from flowrl.operators.concurrency import Concurrently, Dequeue, Enqueue, Sequentially
from flowrl.testing import check_plan
from tests.engine.engine_parts import Fails, InlineWorkers, Noise, Numbers, Pairs, Total


def double(item: int) -> int:
    return 2 * item


def odd(item: int) -> bool:
    return item % 2 == 1


def _here() -> str:
    """file:line of the line that calls this."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


# -- what the verbs give, on plain lists

N = [1, 2, 3, 4, 5]

VERBS: list[tuple[str, Plan, list[object]]] = [
    ("for_each", from_items(N).for_each(double), [2, 4, 6, 8, 10]),
    ("filter", from_items(N).filter(odd), [1, 3, 5]),
    ("combine", from_items(N).combine(Pairs()), [(1, 2), (3, 4), (5,)]),
    ("combine gives none or several, in order", from_items([2, 0, 3]).combine(range), [0, 1, 0, 1, 2]),
    ("combine of combine", from_items([2, 3]).combine(range).combine(range), [0, 0, 0, 1]),
    ("batch, the last one shorter", from_items(N).batch(2), [[1, 2], [3, 4], [5]]),
    ("flatten", from_items([[1, 2], [], [3]]).flatten(), [1, 2, 3]),
    ("take", from_items(N).take(2), [1, 2]),
    ("take more than there is", from_items(N).take(9), N),
    ("take none", from_items(N).take(0), []),
    ("take after several outputs", from_items([3, 3]).combine(range).take(4), [0, 1, 2, 0]),
    ("union: each as it is ready, in turn", from_items([1, 2, 3]).union(from_items([4, 5])), [1, 4, 2, 5, 3]),
    ("zip, as long as each has one", from_items([1, 2, 3]).zip(from_items("ab")), [(1, "a"), (2, "b")]),
    ("prefetch", from_items(N).prefetch(2), N),
    ("prefetch in a thread", from_items(N).prefetch(2, thread=True), N),
    ("call", from_items(N).call(N, "index"), [0, 1, 2, 3, 4]),
    ("call, several in flight", from_items(N).call(N, "index", 3), [0, 1, 2, 3, 4]),
    ("call in a thread", from_items(N).call(N, "index", 2, thread=True), [0, 1, 2, 3, 4]),
    ("gather_sync", from_workers(InlineWorkers(2), Numbers(2)).gather_sync(), [0, 100, 1, 101]),
    ("gather_sync with merge", from_workers(InlineWorkers(2), Numbers(2)).gather_sync(sum), [100, 102]),
    ("gather_async", from_workers(InlineWorkers(2), Numbers(2)).gather_async(), [0, 100, 1, 101]),
    ("a plan on the workers", from_workers(InlineWorkers(1), Numbers(3)).for_each(Total()).gather_async(2), [0, 1, 3]),
    ("an empty list", from_items([]).for_each(double).batch(2), []),
]


@pytest.mark.parametrize(("plan", "expected"), [pytest.param(p, e, id=name) for name, p, e in VERBS])
def test_verbs(plan: Plan, expected: list[object]) -> None:
    """F14: every verb runs on plain lists in this process; two runs of one plan are independent."""
    assert list(plan) == expected
    assert list(plan) == expected


@pytest.mark.parametrize("size", [1, 3, 7, 50])
def test_shuffle_gives_every_item_once_in_an_order_of_the_seed(size: int) -> None:
    """F2, D3, D6: none leaves before the buffer that it waits in is full; resumed at every item."""
    plan = from_items(range(20)).shuffle(size)
    for seed in range(5):
        shuffled = list(plan.run(seed=seed))
        assert sorted(shuffled) == list(range(20))
        assert all(item < place + size for place, item in enumerate(shuffled))
        assert (shuffled == sorted(shuffled)) == (size == 1)
    check_plan(lambda: from_items(range(12)).shuffle(size))


def test_shuffle_favours_no_order() -> None:
    """D6: each of the six orders of three items is as frequent as any other, whether they fill the buffer or not."""
    for size, expected in [(3, 6), (9, 6), (2, 4)]:
        orders = Counter(tuple(from_items("abc").shuffle(size).run(seed=seed)) for seed in range(300))
        assert len(orders) == expected
        assert min(orders.values()) > 0.6 * 300 / expected


def test_duplicate_gives_every_reader_every_item() -> None:
    r1, r2, r3 = from_items(N).for_each(Total()).duplicate(3)
    plan = Concurrently({"a": r1.for_each(double), "b": r2.batch(2), "c": r3.filter(odd)}, "async")
    items = list(plan)
    assert [i for i in items if isinstance(i, int) and i % 2 == 0] == [2, 6, 12, 20, 30]
    assert [i for i in items if isinstance(i, list)] == [[1, 3], [6, 10], [15]]


# -- sources


def test_a_list_a_callable_and_a_generator_function_are_sources() -> None:
    def numbers() -> Iterator[int]:
        yield from N

    assert list(from_items(N)) == N
    assert list(from_items(lambda: iter(N))) == N
    assert list(from_items(numbers)) == N
    assert list(from_items(numbers).for_each(double)) == [2, 4, 6, 8, 10]


def test_a_generator_object_is_refused() -> None:
    with pytest.raises(PlanError, match="a generator object has no state and runs once; give the function"):
        from_items(i for i in N)
    with pytest.raises(PlanError, match="a list_iterator object"):
        from_items(iter(N))
    with pytest.raises(PlanError, match="a source is a list, a callable or a source operator, got 5"):
        from_items(5)


def test_building_a_plan_calls_nothing() -> None:
    """F1: no function, source, worker or thread runs until the plan is iterated."""

    class Worker:
        """Anything asked of it fails the test."""

        members = ()

        def submit(self, method: str, *args: object) -> None:
            raise AssertionError(f"building a plan asked for {method}")

    def never(*_: object) -> list[object]:
        raise AssertionError("building a plan called a function")

    threads = threading.active_count()
    queue = Queue(2)
    on_workers = from_workers(Worker(), never).for_each(never).gather_async(3)
    r1, r2 = from_items(never).for_each(never).filter(never).combine(never).duplicate(2)
    plan = Concurrently(
        [
            r1.prefetch(2, thread=True).for_each(Enqueue(queue)),
            r2.call(Worker(), "work", 2).batch(2),
            Dequeue(queue).zip(on_workers),
        ]
    )
    plan = plan.tap("zip", never).insert_after("batch", never, name="late").replace("late", never)
    assert "not running" in repr(plan)
    assert plan.explain()
    assert len(queue) == 0
    assert threading.active_count() == threads


def test_repr_says_what_it_is() -> None:
    assert repr(from_items(N)) == "plan of 1 operator, not running"
    assert repr(from_items(N).for_each(double).batch(2)) == "plan of 3 operators, not running"


# -- what is refused when it is built


def test_a_stream_read_twice_without_a_fork_is_refused() -> None:
    """F5: the message names the stream and both readers with their lines."""
    stream = from_items(N, name="stream")
    site = stream.site
    with pytest.raises(PlanError) as caught:
        Concurrently([stream.for_each(double), stream.filter(odd)])
    for part in (f"the stream of stream ({site}) is read twice", "by double", "by odd", "duplicate(n)"):
        assert part in str(caught.value)
    with pytest.raises(PlanError, match="read twice"):
        stream.union(stream)
    reader, _ = stream.duplicate(2)
    with pytest.raises(PlanError, match=r"the stream of reader .* is read twice"):
        reader.for_each(double).zip(reader)
    deep = stream.for_each(double).union(from_items(N))
    with pytest.raises(PlanError, match="read twice"):
        deep.batch(2).zip(stream.batch(2))


def test_two_equal_explicit_names_are_refused() -> None:
    plan = from_items(N).for_each(double, name="twice")
    with pytest.raises(PlanError, match=r"two operators are named 'twice': at .*test_plan.py:\d+ and at"):
        plan.for_each(double, name="twice")
    with pytest.raises(PlanError, match="two operators are named 'twice'"):
        plan.union(from_items(N).filter(odd, name="twice"))


def test_a_plan_that_is_still_on_the_workers_is_refused() -> None:
    part = from_workers(InlineWorkers(1), Numbers(2)).for_each(double)
    with pytest.raises(PlanError, match=r"ends with double on the workers .*gather_sync\(\) or gather_async\(\)"):
        part.run()
    with pytest.raises(PlanError, match="branch 1 ends with double on the workers"):
        from_items(N).union(part)
    with pytest.raises(PlanError, match="gather first, then duplicate"):
        part.duplicate(2)
    with pytest.raises(PlanError, match="does not run on workers, there is nothing to gather"):
        from_items(N).gather_async()


class PlainTotal:
    """What needs no decorator to be an operator."""

    def __call__(self, item: int) -> int:
        return item


@pytest.mark.parametrize(("name", "meant"), [("map", "for_each"), ("flat_map", "combine"), ("fliter", "filter")])
def test_a_verb_that_is_not_there_names_the_one_that_is(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=f"a plan has no '{name}'; did you mean '{meant}'"):
        getattr(from_items(N), name)


BAD_PLANS = [
    (lambda: from_items(N).for_each(3), "for_each needs something to call with an item, got 3"),
    (lambda: from_items(N).then(double, "foreach"), "there is no verb 'foreach'; did you mean 'for_each'"),
    (lambda: from_items(N).for_each(Take), "got the class Take; make one of it"),
    (lambda: from_items(N).for_each(PlainTotal), "got the class PlainTotal; make one of it"),
    (lambda: from_items(N).for_each(double, name="a.b"), r"the name 'a.b' has a character"),
    (lambda: from_items(N).for_each(double, name=5), "a name of an operator is a text, got 5"),
    (lambda: from_items(N).batch(2, name=""), "a name of an operator is a text, got ''"),
    (lambda: from_items(N, name=b"n"), "a name of an operator is a text, got b'n'"),
    (lambda: from_items(N).remove(3), "found by its path, its name or a glob, got 3"),
    (lambda: from_items(N).run(on_error={3: "skip"}), "got 3 as a name"),
    (lambda: from_items(N).zip(from_items(N), names=["a", 1]), "a name of a branch of zip is a text, got 1"),
    (lambda: Concurrently({1: from_items(N)}), "branch names are identifiers, got 1"),
    (lambda: Sequentially({1: from_items(N)}), "names that are identifiers, got {1: plan"),
    (lambda: Concurrently(from_items(N)), "joins a list of plans, or plans by name, got plan of 1"),
    (lambda: from_items(N).batch(0), "batch needs size >= 1, a whole number, got 0"),
    (lambda: from_items(N).batch(2.5), "batch needs size >= 1, a whole number, got 2.5"),
    (lambda: from_items(N).shuffle(0), "shuffle needs buffer_size >= 1, a whole number, got 0"),
    (lambda: from_items(N).take(-1), "take needs n >= 0, a whole number, got -1"),
    (lambda: from_items(N).take(math.nan), "take needs n >= 0, a whole number, got nan"),
    (lambda: from_items(N).prefetch(math.nan), "prefetch needs n >= 1, a whole number, got nan"),
    (lambda: from_items(N).duplicate(2, max_lag=math.inf), "duplicate needs max_lag >= 1, a whole number, got inf"),
    (lambda: from_items(N).call(N, "index", 1.5), "call needs in_flight >= 1, a whole number, got 1.5"),
    (lambda: Queue(2.5), "a queue needs maxsize >= 1, a whole number, got 2.5"),
    (lambda: Queue(1, producers="2"), "a queue needs producers >= 1, a whole number, got '2'"),
    (lambda: Enqueue(queue.Queue(5)), r"is a flowrl.Queue, .* got <queue.Queue .*: use flowrl.Queue\("),
    (lambda: Dequeue(queue.Queue()), "is a flowrl.Queue, .* external=True"),
    (
        lambda: Concurrently([from_items(N)], round_robin_weights=[math.nan]),
        r"each at least 0.001 or '\*', got \[nan\]",
    ),
    (lambda: from_items(N).duplicate(0), "duplicate needs n >= 1"),
    (lambda: from_items(N).duplicate(2, max_lag=0), "max_lag >= 1"),
    (lambda: from_items(N).prefetch(0), "prefetch needs n >= 1"),
    (lambda: from_items(N).call(N, "index", 0), "call needs in_flight >= 1"),
    (lambda: from_items(N).call(N, "indx"), "list has no method 'indx'"),
    (lambda: from_workers(InlineWorkers(1), Numbers(1)).gather_async(0), "gather_async needs in_flight >= 1"),
    (lambda: from_items(N).zip([1, 2]), r"zip joins plans, got \[1, 2\]"),
    (lambda: Concurrently([]), "Concurrently needs at least one branch"),
    (lambda: Concurrently([from_items(N)], "both"), "mode is 'round_robin' or 'async', got 'both'"),
    (lambda: Concurrently({"a b": from_items(N)}), "branch names are identifiers, got 'a b'"),
    (lambda: Concurrently([from_items(N)], round_robin_weights=[1, 2]), "needs 1 weights"),
    (lambda: Concurrently([from_items(N)], round_robin_weights=[0]), "each at least 0.001"),
    (lambda: Concurrently([from_items(N)], "async", round_robin_weights=[1]), "weights go with round_robin"),
    (lambda: Concurrently([from_items(N)], output_indexes=[1]), "names 1, but the branches are 0"),
    (lambda: Concurrently({"a": from_items(N)}, output_indexes=["b"]), "names 'b', but the branches are a"),
    (lambda: Concurrently([from_items(N)], output_indexes=[]), "nothing would ever come out"),
    (lambda: Queue(0), "a queue needs maxsize >= 1"),
]


@pytest.mark.parametrize(("build", "message"), BAD_PLANS)
def test_what_cannot_work_is_refused_when_built(build: object, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        build()  # type: ignore[operator]


# -- the user's line


def test_the_site_is_the_users_line() -> None:
    queue = Queue(1)
    plan, line = from_items(N), _here()
    assert plan.site == line
    plan, line = plan.for_each(double), _here()
    assert plan.site == line
    plan, line = Dequeue(queue), _here()
    assert plan.site == line
    plan, line = Concurrently([plan, from_items(N)]), _here()
    assert plan.site == line
    plan, line = plan.replace("Items", [4]), _here()
    assert next(n for n in plan.inputs if n.name == "Items").site == line


# -- edits by name


def train_plan() -> Plan:
    store = from_items(N).for_each(double).for_each(double)
    return Concurrently({"store": store, "train": from_items(N).for_each(Total()).batch(2)})


def test_insert_before_and_after_by_path_last_part_and_glob() -> None:
    plan = from_items(N).for_each(double).for_each(Total())
    assert list(plan.insert_before("Total", lambda x: x + 1)) == [3, 8, 15, 24, 35]
    assert list(plan.insert_after("Total", lambda x: x + 1)) == [3, 7, 13, 21, 31]
    assert list(plan.insert_after("dou*", odd, "filter")) == []
    assert list(plan) == [2, 6, 12, 20, 30], "the plan itself is as it was"
    inside = train_plan().insert_after("train.Total", double)
    assert list(inside) == [4, [2, 6], 8, [12, 20], 12, [30], 16, 20]
    assert list(train_plan().insert_before("store.double-2", lambda x: 0).filter(lambda x: x == 0)) == [0] * 5


def test_replace_and_remove() -> None:
    plan = from_items(N).for_each(double).filter(odd)
    assert list(plan.replace("double", lambda x: x + 1)) == [3, 5]
    assert list(plan.replace("odd", lambda x: x > 5)) == [6, 8, 10]
    assert list(plan.replace("Items", [7]).remove("odd")) == [14]
    assert list(plan.replace("Items", from_items([1]).for_each(lambda x: x + 2)).remove("odd")) == [6]
    assert list(plan.remove("double")) == [1, 3, 5]


def test_taps_look_at_what_leaves_an_operator() -> None:
    seen: list[object] = []
    plan = from_items(N).for_each(double).batch(2)
    assert list(plan.tap("double", seen.append)) == list(plan)
    assert seen == [2, 4, 6, 8, 10]
    others: list[object] = []
    tapped = plan.tap("double", seen.append)
    assert list(tapped.replace("tap(append)", others.append)) == list(plan), "a tap is replaced by a tap"
    assert others == [2, 4, 6, 8, 10]
    assert list(tapped.remove("tap(append)")) == list(plan)


def test_a_tap_on_a_fork_sees_each_item_once() -> None:
    seen: list[object] = []
    r1, r2 = from_items(N).duplicate(2)
    assert list(r1.zip(r2).tap("duplicate", seen.append)) == [(i, i) for i in N]
    assert seen == N


def test_breakpoint_opens_the_debugger_at_the_chosen_items(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: opened.append(sys._getframe(1).f_locals["item"]))
    plan = from_items(N).for_each(double)
    assert list(plan.breakpoint("double", when=lambda item: item > 6)) == list(plan)
    assert opened == [8, 10]
    assert list(plan.breakpoint("Items")) == list(plan)
    assert opened == [8, 10, *N]


def test_a_name_with_no_hit_or_several_lists_what_there_is() -> None:
    plan = train_plan()
    with pytest.raises(PlanError) as none:
        plan.tap("Totl", repr)
    assert "no operator is named 'Totl'; did you mean" in str(none.value)
    assert "train.Total" in str(none.value)
    assert "store.double-2" in str(none.value)
    with pytest.raises(PlanError, match=r"'\*double\*' names 2 operators: store.double, store.double-2"):
        plan.tap("*double*", repr)
    with pytest.raises(PlanError, match=r"names 2 operators: store.Items, train.Items; give a full path"):
        plan.remove("Items")


def test_edits_that_have_no_place_say_why() -> None:
    r1, r2 = from_items(N).duplicate(2)
    plan = Concurrently([r1.prefetch(), r2])
    with pytest.raises(PlanError, match="it has 2 inputs, so 'before' is not one place"):
        plan.insert_before("Concurrently", double)
    with pytest.raises(PlanError, match="it has 0 inputs"):
        plan.insert_before("Items", double)
    with pytest.raises(PlanError, match="nothing stands between a fork and its reader"):
        plan.insert_before("0.reader", double)
    with pytest.raises(PlanError, match="without it its neighbors are not connected"):
        plan.remove("prefetch")
    with pytest.raises(PlanError, match="prefetch wires the plan"):
        plan.replace("prefetch", double)


# -- names


def test_names_are_explicit_or_numbered_within_a_branch() -> None:
    from flowrl.engine.graph import graph, paths

    plan = train_plan().tap("store.double", repr)
    named = paths(plan)
    assert [named[id(node)] for node in graph(plan)] == [
        "store.Items",
        "store.double",
        "store.tap(repr)",
        "store.double-2",
        "train.Items",
        "train.Total",
        "train.batch",
        "Concurrently",
    ]
    r1, r2 = from_items(N).for_each(double).duplicate(2)
    both = Concurrently({"a": r1, "b": r2})
    assert sorted(paths(both).values()) == ["Concurrently", "Items", "a.reader", "b.reader", "double", "duplicate"]


def test_operators_work_alone() -> None:
    """An operator is a callable; outside a run it has a context of its own."""
    total, noise, pairs = Total(scale=3), Noise(), Pairs()
    assert [total(i) for i in [1, 2]] == [3, 9]
    assert noise(1.0) != noise(1.0)
    assert noise.context.counters == {"draws": 2}
    assert [pairs(1), pairs(2), pairs(3), pairs.finish()] == [[], [(1, 2)], [], [(3,)]]


def test_a_run_works_with_a_copy_of_the_operator() -> None:
    total = Total(scale=2)
    plan = from_items(N).for_each(total)
    assert list(plan) == list(plan) == [2, 6, 12, 20, 30]
    assert total.total == 0
    function = Fails()
    assert list(from_items(N).for_each(function)) == function.seen == N, "a plain object is shared"


def test_a_user_module_whose_name_begins_like_ours_is_a_users() -> None:
    made: dict[str, Plan] = {}
    code = compile("plan = from_items([1])", "attractors.py", "exec")
    exec(code, {"__name__": "attractors", "from_items": from_items}, made)
    assert made["plan"].site == "attractors.py:1"


def test_operators_keep_their_init_fields_as_configuration() -> None:
    @operator
    class Scale:
        by: int

        def __call__(self, item: int) -> int:
            return self.by * item

    assert list(from_items(N).for_each(Scale(by=10))) == [10, 20, 30, 40, 50]
