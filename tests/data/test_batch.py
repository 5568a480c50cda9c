"""Batch: columns by key and attribute, cut and joined on the leading axes."""

import copy
import operator
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from flowrl.data import columns as cols
from flowrl.data.batch import Batch
from flowrl.errors import SchemaError


@pytest.fixture
def fragment():
    """Columns [T=4, N=2, ...]: arrays, a tensor and nested batches."""
    return Batch(
        obs={"image": np.arange(32, dtype=np.uint8).reshape(4, 2, 4), "inner": {"x": np.zeros((4, 2))}},
        reward=np.arange(8, dtype=np.float32).reshape(4, 2),
        value=torch.arange(8.0).reshape(4, 2),
    )


# -- columns


def test_columns_by_key_and_attribute(fragment):
    assert fragment.reward is fragment["reward"]
    assert fragment.obs.inner.x is fragment["obs"]["inner"]["x"]
    fragment.done = fragment.reward > 3
    fragment["mask"] = [[1, 0]] * 4
    assert fragment.done.dtype == bool
    assert fragment.mask.shape == (4, 2)
    assert list(fragment) == list(fragment.keys()) == ["obs", "reward", "value", "done", "mask"]
    assert "done" in fragment
    assert "dont" not in fragment
    assert fragment.get("dont") is None
    assert dict(fragment.items())["done"] is fragment.done
    assert {"done", "flat"} <= set(dir(fragment))


def test_arrays_and_tensors_are_held_not_copied():
    a, t = np.zeros(3), torch.zeros(3)
    b = Batch({"a": a, "nested": {"t": t}}, t=t)
    assert b.a is a
    assert b.t is b.nested.t is t


@pytest.mark.parametrize("error", [KeyError, AttributeError, SchemaError])
def test_an_unknown_column_names_the_closest(fragment, error):
    with pytest.raises(error, match=r"^the batch has no column 'rewrad': did you mean 'reward'\? There are: obs, "):
        fragment["rewrad"] if error is KeyError else fragment.rewrad
    assert not hasattr(fragment, "rewrad")


def test_method_names_win_on_attributes_and_keys_always_work():
    b = Batch({"items": np.ones(2)})
    b["shape"] = np.zeros(2)
    assert callable(b.items)
    assert b.shape == (2,)
    assert b["items"].tolist() == [1, 1]
    with pytest.raises(AttributeError, match=r"'items' is a method of Batch: .* batch\['items'\] = "):
        b.items = np.ones(2)


def test_a_list_of_mappings_is_stacked():
    rows = [{"a": k, "n": {"x": np.full(2, k)}} for k in range(3)]
    assert Batch(rows) == Batch(tuple(map(Batch, rows))) == Batch(a=[0, 1, 2], n={"x": [[0, 0], [1, 1], [2, 2]]})
    with pytest.raises(SchemaError, match="batch 1 to stack lacks 'n'"):
        Batch([rows[0], {"a": 1}])
    for wrong in ([1, 2], 3, np.ones(3)):
        with pytest.raises(TypeError, match="columns come as a mapping or a batch, not as a"):
            Batch(wrong)


def test_names_are_strings():
    with pytest.raises(TypeError, match="not by 0"):
        Batch({0: np.ones(2)})


def test_update_replace_select(fragment):
    other = fragment.replace(reward=np.zeros((4, 2)), extra=np.ones((4, 2)))
    assert "extra" not in fragment
    assert fragment.reward.any()
    assert other.obs is fragment.obs
    assert list(fragment.select(["value", "obs"])) == ["value", "obs"]
    with pytest.raises(KeyError, match="did you mean 'value'"):
        fragment.select(["valu"])
    fragment.update({"a": [[1, 2]] * 4}, reward=np.ones((4, 2)))
    fragment.update(Batch(value=np.zeros((4, 2))))
    assert (fragment.a.sum(), fragment.reward.sum(), fragment.value.sum()) == (12, 8, 0)


def test_columns_can_be_taken_out(fragment):
    value = fragment.value
    assert fragment.pop("value") is value
    del fragment["obs"]
    del fragment.reward
    assert list(fragment) == []
    with pytest.raises(KeyError, match="no column 'value'"):
        fragment.pop("value")
    with pytest.raises(AttributeError, match="no column 'items'"):
        del fragment.items


def test_a_list_of_unequal_lengths_is_no_column():
    with pytest.raises(SchemaError, match=r"column 'goal' is no array: .*dtype=object"):
        Batch(goal=[[1], [2, 3]])


# -- shape and indexing


def test_shape_is_what_all_columns_share(fragment):
    assert (fragment.shape, fragment.rows, len(fragment)) == ((4, 2), 8, 4)
    assert Batch(a=np.ones((3, 2)), b=np.ones(3), none=Batch()).shape == (3,)
    assert Batch(none=Batch(), a=np.ones((3, 2))).shape == (3, 2)
    assert Batch(a=np.ones(3), b=np.ones(4)).shape == ()
    assert Batch(a=torch.ones(3, 2)).shape == (3, 2)
    assert type(Batch(a=torch.ones(3, 2)).shape) is tuple


def test_empty_batches():
    assert (len(Batch()), Batch().rows, Batch().shape, Batch().is_empty) == (0, 0, (), True)
    assert Batch(a=np.ones((0, 3))).is_empty
    assert not Batch(a=np.ones(1)).is_empty
    assert repr(Batch()) == "Batch()"


def test_one_row_has_a_row_but_no_length(fragment):
    row = fragment[1, 0]
    assert (row.shape, row.rows, row.reward) == ((), 1, 2.0)
    with pytest.raises(TypeError, match="no length"):
        len(row)


INDICES = [1, -1, slice(1, 3), slice(None, None, 2), (slice(None), 1), (2, 0), [0, 0, 3], np.array([3, 1])]
INDICES += [np.array([True, False, True, True]), (np.array([0, 2]), np.array([1, 1])), (slice(1, 3), [1, 0])]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing_is_that_of_every_column(fragment, index):
    cut = fragment[index]
    np.testing.assert_array_equal(cut.reward, fragment.reward[index])
    np.testing.assert_array_equal(cut.obs.image, fragment.obs.image[index])
    np.testing.assert_array_equal(cut.value, fragment.reward[index])
    assert cut.shape == np.shape(fragment.reward[index])


def test_slices_are_views(fragment):
    fragment[1:3, 1].obs.image[:] = 99
    assert fragment.obs.image[1, 1].tolist() == [99] * 4
    assert not np.shares_memory(fragment[[0, 1]].reward, fragment.reward)


def test_an_ellipsis_would_reach_into_features(fragment):
    with pytest.raises(IndexError, match="leading axes"):
        fragment[..., 0]
    with pytest.raises(IndexError, match="leading axes"):
        fragment[..., 0] = 1


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_assignment_through_an_index(fragment, index):
    expected = fragment.reward.copy()
    expected[index] += 6
    fragment[index] = fragment[index].map(lambda column: column + 6)
    np.testing.assert_array_equal(fragment.reward, expected)
    np.testing.assert_array_equal(fragment.value, expected)
    fragment[index] = 0
    assert not fragment.obs.image[index].any()


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_arithmetic_in_place_through_an_index(fragment, index):
    expected = fragment.reward.copy()
    expected[index] += 6
    fragment[index] += 6
    np.testing.assert_array_equal(fragment.reward, expected)
    fragment[index] -= fragment[index]
    assert not fragment.value[index].any()
    assert fragment.obs.image.dtype == np.uint8


def test_products_and_quotients_in_place():
    b = Batch(a=np.ones(3), t=torch.ones(3))
    b *= 6
    b /= {"a": 2, "t": 3}
    assert (b.a.tolist(), b.t.tolist()) == ([3, 3, 3], [2, 2, 2])


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "pow"])
def test_arithmetic_changes_neither_side(name):
    b = Batch(a=np.ones(3), t=torch.ones(3), n={"x": np.arange(3)})
    before, function = copy.deepcopy(b), getattr(operator, name)
    for other in (3, b * 2 + 1, {"a": 2, "t": np.ones(3), "n": {"x": 1}}):
        assert function(b, other) == Batch(
            {key: function(b[key], other if other == 3 else cols.like(b[key], other[key])) for key in ("a", "t")},
            n={"x": function(b.n.x, other if other == 3 else other["n"]["x"])},
        )
    assert b == before
    with pytest.raises(SchemaError, match="the batch on the right lacks 't', 'n'"):
        function(b, Batch(a=np.ones(3)))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv"])
@pytest.mark.parametrize("left", [3, np.float64(3), np.arange(3.0)])
def test_a_batch_may_stand_on_the_right(name, left):
    function = getattr(operator, name)
    b = Batch(a=np.ones(3), n={"x": np.arange(1.0, 4)})
    assert function(left, b) == Batch(a=function(left, b.a), n={"x": function(left, b.n.x)})
    assert -b == 0 - b == Batch(a=-b.a, n={"x": -b.n.x})


def test_assigning_a_batch_with_other_columns_changes_nothing(fragment):
    before = copy.deepcopy(fragment)
    with pytest.raises(SchemaError, match="the batch on the right lacks 'obs', 'value' and has extra 'x'"):
        fragment[0] = Batch(reward=np.ones(2), x=np.ones(2))
    assert fragment == before


def test_nested_columns_that_differ_change_nothing(fragment):
    before = copy.deepcopy(fragment)
    other = fragment.replace(obs={"image": fragment.obs.image, "inner": {"y": np.zeros((4, 2))}})
    with pytest.raises(SchemaError, match="lacks 'x' and has extra 'y'"):
        fragment[:] = other.map(lambda column: column + 1)
    with pytest.raises(SchemaError, match=r"column 'reward' is float32\[4, 2\], on the right it is Batch"):
        fragment[:] = fragment.replace(reward={"a": 1})
    assert fragment == before


def test_arrays_and_tensors_are_assigned_to_each_other(fragment):
    fragment[0] = fragment[0].map(lambda column: column + 6).to_numpy()
    fragment[1] += fragment[0].to_torch()
    fragment[2] = {"obs": 0, "reward": torch.tensor([7.0, 8.0]), "value": [7, 8]}
    np.testing.assert_array_equal(fragment.value, fragment.reward)
    assert fragment.reward.tolist() == [[6, 7], [8, 10], [7, 8], [6, 7]]
    mask = torch.tensor([True, False, True, False])
    np.testing.assert_array_equal(fragment[mask].value, fragment[mask.numpy()].reward)


# -- against nested dicts

KINDS = [np.float32, np.int64, np.uint8, bool, object]


@st.composite
def trees(draw, shape, depth=2):
    """Nested dicts of arrays and tensors with these leading axes."""
    tree = {}
    for name in draw(st.sets(st.sampled_from(["obs", "reward", "a b", "items"]), min_size=1)):
        if depth and draw(st.booleans()):
            tree[name] = draw(trees(shape, depth - 1))
            continue
        whole = (*shape, *draw(st.lists(st.integers(1, 3), max_size=2)))
        array = (
            np.random.default_rng(draw(st.integers(0, 99))).integers(0, 9, whole).astype(draw(st.sampled_from(KINDS)))
        )
        tree[name] = torch.from_numpy(array) if array.dtype != object and draw(st.booleans()) else array
    return tree


@st.composite
def indices(draw, shape):
    """Whatever numpy and torch take alike: on the first axis, or on the first two."""
    return draw(
        st.one_of(
            st.integers(-shape[0], shape[0] - 1),
            st.slices(shape[0]).filter(lambda s: s.step is None or s.step > 0),
            st.lists(st.integers(0, shape[0] - 1), max_size=4).map(lambda rows: np.array(rows, np.int64)),
            npst.arrays(bool, shape[0]),
            npst.arrays(bool, shape),
            st.tuples(st.just(slice(None)), st.integers(0, shape[1] - 1)),
            st.tuples(st.integers(0, shape[0] - 1), st.integers(0, shape[1] - 1)),
        )
    )


def mapped(function, *trees):
    """A function of the leaves of equal trees, as a tree."""
    return {
        name: mapped(function, *(tree[name] for tree in trees)) if isinstance(leaf, dict) else
        function(*(tree[name] for tree in trees))
        for name, leaf in trees[0].items()
    }  # fmt: skip


def of_kind(leaf, taken):
    """One object out of an array of objects stays one."""
    return np.array(taken, object) if isinstance(leaf, np.ndarray) and leaf.dtype == object else taken


SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 3))


@given(st.data(), SHAPES)
def test_a_batch_is_what_its_columns_are_each_by_itself(data, shape):
    """Any nesting, arrays, objects and tensors mixed: indexing, assignment, joining, splitting, copies."""
    tree = data.draw(trees(shape))
    batch, index = Batch(tree), data.draw(indices(shape))
    assert batch.shape[:2] == shape
    assert batch[index] == Batch(mapped(lambda leaf: of_kind(leaf, leaf[index]), tree))
    assert batch == Batch(mapped(copy.copy, tree)) == pickle.loads(pickle.dumps(batch)) == copy.deepcopy(batch)
    assert Batch.stack([batch, batch]) == Batch(mapped(lambda leaf: cols.join([leaf, leaf], 0, "stack"), tree))
    assert Batch.cat([batch, batch], axis=1) == Batch(mapped(lambda leaf: cols.join([leaf, leaf], 1, "cat"), tree))
    order = np.random.default_rng(5).permutation(shape[0])
    parts = list(batch.split(2, True, np.random.default_rng(5)))
    assert Batch.cat(parts) == batch[order]
    assert Batch.cat(list(batch.split(2))) == batch

    def put(leaf):
        leaf = copy.deepcopy(leaf)
        leaf[index] = 6
        return leaf

    assigned = copy.deepcopy(batch)
    assigned[index] = 6
    assert assigned == Batch(mapped(put, tree))
    again = copy.deepcopy(batch)
    again[index] = assigned[index]
    assert again == assigned


# -- joining and splitting


def test_cat_and_stack_undo_slicing(fragment):
    assert Batch.cat([fragment[:1], fragment[1:]]) == fragment
    assert Batch.cat([fragment[:, :1], fragment[:, 1:]], axis=1) == fragment
    assert Batch.stack([fragment[t] for t in range(4)]) == fragment
    assert Batch.stack([fragment[:, e] for e in range(2)], axis=1) == fragment
    assert Batch.stack(list(fragment.flat()[:2].split(1))).shape == (2, 1)


def test_joining_what_does_not_agree_is_refused(fragment):
    with pytest.raises(SchemaError, match="batch 1 to cat lacks 'value'; expected columns: obs, reward, value"):
        Batch.cat([fragment, fragment.select(["obs", "reward"])])
    with pytest.raises(SchemaError, match="batch 1 to stack has extra 'more'"):
        Batch.stack([fragment, fragment.replace(more=np.ones((4, 2)))])
    with pytest.raises(SchemaError, match=r"column 'value': torch.float32\[4, 2\] in batch 0, float32\[4, 2\] in 1"):
        Batch.cat([fragment, fragment.replace(value=fragment.reward)])
    with pytest.raises(SchemaError, match="column 'obs'"):
        Batch.cat([fragment, fragment.replace(obs=fragment.reward)])
    for how in (Batch.cat, Batch.stack):
        for obs in (np.ones((4, 2, 5)), torch.ones((4, 2, 5))):
            wide = Batch(goal=Batch(obs=obs))
            with pytest.raises(SchemaError, match=r"column 'obs': cannot .*\[4, 2, 5\] and .*\[4, 2, 3\] along axis 0"):
                how([wide, wide.map(lambda column: column[..., :3])])
    with pytest.raises(ValueError, match="of no batches"):
        Batch.cat([])
    with pytest.raises(ValueError, match="axis is -1"):
        Batch.cat([fragment], axis=-1)


def test_flat_is_time_major(fragment):
    flat = fragment.flat()
    assert flat.shape == (8,)
    assert flat.reward.tolist() == list(range(8))
    assert flat.obs.image.shape == (8, 4)
    assert np.shares_memory(flat.reward, fragment.reward)
    with pytest.raises(ValueError, match=r"two leading axes, but there are 1 in Batch\[8\]"):
        flat.flat()
    assert Batch(a=np.ones((0, 2, 3))).replace(b=np.ones((0, 2))).flat().a.shape == (0, 3)


def test_split_in_order_and_shuffled(fragment):
    assert [len(part) for part in fragment.split(3)] == [3, 1]
    assert Batch.cat(list(fragment.split(3))) == fragment
    flat = fragment.flat()
    shuffled = Batch.cat(list(flat.split(3, True, np.random.default_rng(0))))
    assert shuffled == Batch.cat(list(flat.split(3, True, np.random.default_rng(0))))
    assert shuffled != flat
    assert shuffled[np.argsort(shuffled.reward)] == flat
    with pytest.raises(ValueError, match="size is 0"):
        flat.split(0)
    with pytest.raises(ValueError, match=r"draws from a generator: give one"):
        flat.split(3, shuffle=True)
    assert Batch.cat(list(flat.split(3, False, np.random.default_rng(0)))) == flat


# -- conversion, equality, copies


def test_to_torch_and_back(fragment):
    tensors = fragment.to_torch()
    assert {tensors.obs.image.dtype, tensors.reward.dtype} == {torch.uint8, torch.float32}
    assert tensors.value is fragment.value
    tensors.reward[0, 0] = 42
    assert fragment.reward[0, 0] == 42, "memory is shared"
    assert tensors.to_numpy() == fragment.to_numpy()
    assert fragment.to("cpu").reward is fragment.reward
    assert Batch(a=torch.ones(2, requires_grad=True)).to_numpy().a.tolist() == [1, 1]


def test_to_torch_of_what_torch_cannot_share():
    frozen = np.arange(3)
    frozen.flags.writeable = False
    b = Batch(frozen=frozen, back=np.arange(3)[::-1], number=np.float32(2)).to_torch("cpu")
    assert (b.frozen.tolist(), b.back.tolist(), b.number.item()) == ([0, 1, 2], [2, 1, 0], 2)


def test_objects_are_columns_and_visible_as_such():
    infos = Batch(info=[{"won": True}, None, {"at": np.ones(2)}], reward=np.ones(3))
    assert repr(infos) == "Batch[3](info=object[3], reward=float64[3])"
    assert infos[1:].info.tolist()[0] is None
    assert repr(infos[2]) == "Batch[](info=object[], reward=float64[])"
    assert infos[np.int64(0)].info.item() == {"won": True}
    assert Batch.stack([infos[0], infos[1], infos[2]]) == infos
    assert infos == pickle.loads(pickle.dumps(infos)) == copy.deepcopy(infos).replace(info=infos.info.copy())
    assert infos != infos.replace(info=infos.info[::-1])
    infos[0] = infos[2]
    assert infos.info[0] is infos.info[2]
    assert Batch(a=np.array([1, None])) != Batch(a=np.array([True, None]))


def test_torch_has_no_objects_and_no_text():
    b = Batch(reward=np.ones(2), info={"who": np.array(["x", "y"]), "what": np.array([{}, None])})
    with pytest.raises(SchemaError, match=r"column 'info.who' is <U1\[2\], column 'info.what' is object\[2\]; select"):
        b.to_torch()
    assert b.select(["reward"]).to_torch().reward.tolist() == [1, 1]


def test_equality_is_exact(fragment):
    same = copy.deepcopy(fragment)
    assert fragment == same
    assert fragment == same.select(["value", "reward", "obs"])
    assert fragment != same.replace(reward=same.reward.astype(np.float64))
    assert fragment != same.replace(value=same.value.numpy())
    assert fragment != same.replace(value=same.value.double())
    assert fragment != same.replace(reward=same.reward[:1])
    assert fragment != same.select(["obs"])
    assert fragment != dict(same)
    same.obs.inner.x[0, 0] = 1
    assert fragment != same
    with pytest.raises(TypeError, match="unhashable"):
        hash(fragment)


def test_nan_equals_nan():
    nan = Batch(a=np.array([np.nan, 1]), t=torch.tensor([np.nan, 1]), name=np.array(["x", "y"]))
    assert nan == copy.deepcopy(nan)
    assert nan != nan.replace(t=torch.tensor([1, np.nan]))


def test_copies(fragment):
    for other in (copy.deepcopy(fragment), pickle.loads(pickle.dumps(fragment))):
        assert other == fragment
        other.obs.image[:] = 7
        other.value[:] = 7
        assert other != fragment
    shallow = copy.copy(fragment)
    shallow.more = np.ones((4, 2))
    assert shallow.obs is fragment.obs
    assert "more" not in fragment
    assert Batch(fragment.to_dict()) == fragment
    assert type(fragment.to_dict()["obs"]["inner"]) is dict


def test_repr_shows_dtypes_and_shapes(fragment):
    assert repr(fragment) == (
        "Batch[4, 2](obs=Batch[4, 2](image=uint8[4, 2, 4], inner=Batch[4, 2](x=float64[4, 2])), "
        "reward=float32[4, 2], value=torch.float32[4, 2])"
    )


def test_a_printed_batch_shows_values():
    assert str(Batch(a=torch.arange(9), n={"x": np.eye(2)})) == (
        "Batch[](a=torch.int64[9], n=Batch[2, 2](x=float64[2, 2]))\n  a: [0 1 ... 7 8]\n  n.x: [[1. 0.] [0. 1.]]"
    )


def test_batches_load_no_torch():
    """`import flowrl` stays quick."""
    code = "import sys, flowrl.data.batch, flowrl.data.replay, flowrl.returns; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_tensors_are_where_they_were_asked_for() -> None:
    """On a device that is none of the host's memory, by name or as a device."""
    batch = Batch(obs=np.zeros((2, 3), np.float32))
    assert {batch.to_torch(where).obs.device.type for where in ("meta", torch.device("meta"))} == {"meta"}
    assert batch.to_torch(torch.device("cpu")).obs.device.type == "cpu"
