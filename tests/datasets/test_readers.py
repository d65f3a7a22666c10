import gzip
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfomo.datasets import formats, readers
from fedfomo.datasets.bundled import DataSet
from fedfomo.datasets.readers import load_data, read_folder
from fedfomo.errors import InputError

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 5, 4), dtype=np.uint8)
GREY_TEST = RNG.integers(0, 256, (3, 5, 4), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
COLOUR_TEST = RNG.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 3], dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "things").mkdir()
    return tmp_path / "things"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFOMO_CACHE", str(tmp_path / "cache"))


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, dtype=">u4").tobytes() + array.tobytes()


def write_mnist(folder: Path, pack: Callable[[bytes], bytes] = bytes, suffix: str = "", dot: str = "-") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        f"train-images{dot}idx3-ubyte": GREY,
        f"train-labels{dot}idx1-ubyte": LABELS[:6],
        f"t10k-images{dot}idx3-ubyte": GREY_TEST,
        f"t10k-labels{dot}idx1-ubyte": LABELS[:3],
    }
    for name, array in contents.items():
        (folder / (name + suffix)).write_bytes(pack(idx(array)))


def cifar(pixels: np.ndarray, *labels: np.ndarray) -> bytes:
    planes = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
    return np.concatenate([*(column[:, None] for column in labels), planes], axis=1).tobytes()


def write_cifar10(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for batch in range(5):
        rows = slice(2 * batch, 2 * batch + 2)
        (folder / f"data_batch_{batch + 1}.bin").write_bytes(cifar(COLOUR[rows], LABELS[rows]))
    (folder / "test_batch.bin").write_bytes(cifar(COLOUR_TEST, LABELS[:2]))


def write_cifar100(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.bin").write_bytes(cifar(COLOUR, LABELS[::-1], LABELS + 90))
    (folder / "test.bin").write_bytes(cifar(COLOUR_TEST, LABELS[:2], LABELS[:2]))


def write_npz(file: Path, **arrays: np.ndarray) -> None:
    np.savez(file, **({"x_train": GREY, "y_train": LABELS[:6], "x_test": GREY_TEST, "y_test": LABELS[:3]} | arrays))


def write_images(folder: Path, grey: bool = True) -> None:
    image = pytest.importorskip("PIL.Image")
    for split, pixels in (("train", GREY), ("test", GREY_TEST)):
        for number, (picture, label) in enumerate(zip(pixels, LABELS, strict=False)):
            place = folder / split / f"class {'cab'[label]}"
            place.mkdir(parents=True, exist_ok=True)
            image.fromarray(picture if grey else np.stack([picture] * 3, axis=-1)).save(place / f"{number}.png")


def assert_holds(data: DataSet, pixels: np.ndarray, labels: np.ndarray, test_pixels: np.ndarray) -> None:
    for examples, expected in ((data.train, pixels), (data.test, test_pixels)):
        channels_first = expected[:, None] if expected.ndim == 3 else expected.transpose(0, 3, 1, 2)
        assert examples.inputs.dtype == torch.float32
        np.testing.assert_array_equal(examples.inputs.numpy(), channels_first.astype(np.float32) / 255)
    assert data.train.labels.dtype == torch.int64
    assert data.train.labels.tolist() == labels.tolist()
    assert data.test.labels.tolist() == [0, 1, 2][: len(test_pixels)]


@pytest.mark.parametrize("dot", ["-", "."])
@pytest.mark.parametrize(("pack", "suffix"), [(bytes, ""), (gzip.compress, ".gz")])
def test_mnist_idx(folder: Path, pack: Callable[[bytes], bytes], suffix: str, dot: str) -> None:
    write_mnist(folder, pack, suffix, dot)
    data = read_folder(folder)
    assert_holds(data, GREY, LABELS[:6], GREY_TEST)
    assert (data.name, data.num_classes) == ("things", 3)


@pytest.mark.parametrize("subfolder", ["", "cifar-10-batches-bin"])
def test_cifar10_binary(folder: Path, subfolder: str) -> None:
    write_cifar10(folder / subfolder)
    assert_holds(read_folder(folder), COLOUR, LABELS, COLOUR_TEST)


def test_cifar100_binary_has_fine_labels(folder: Path) -> None:
    write_cifar100(folder / "cifar-100-binary")
    data = read_folder(folder)
    assert_holds(data, COLOUR, LABELS + 90, COLOUR_TEST)
    assert data.num_classes == 94


def test_npz(folder: Path) -> None:
    write_npz(folder / "small.npz")
    data = read_folder(folder)
    assert_holds(data, GREY, LABELS[:6], GREY_TEST)
    assert data.name == "small"


def test_npz_with_channels_first_fractions_and_labels_in_a_column(folder: Path) -> None:
    write_npz(
        folder / "small.npz",
        x_train=COLOUR.transpose(0, 3, 1, 2) / 255,
        y_train=LABELS[:, None],
        x_test=COLOUR_TEST,
        y_test=LABELS[:2],
    )
    assert_holds(read_folder(folder), COLOUR, LABELS, COLOUR_TEST)


@pytest.mark.parametrize("grey", [True, False])
def test_image_folders_number_classes_alphabetically(folder: Path, grey: bool) -> None:
    write_images(folder, grey)
    data = read_folder(folder)
    assert data.train.inputs.shape == (6, 1 if grey else 3, 5, 4)
    assert data.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    # "class a" is label 1 above: the second and fifth pictures.
    np.testing.assert_array_equal((data.train.inputs[:2, 0] * 255).round().numpy(), GREY[[1, 4]])


def test_grey_of_16_bits_keeps_its_precision(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    write_images(folder)
    # 257 of 65535 is 1 of 255.
    deep = np.array([[0, 256, 257, 25700], [65534, 65535, 1, 2]] * 2 + [[0, 0, 0, 0]], dtype=np.uint16)
    image.fromarray(deep).save(folder / "train" / "class a" / "1.png")
    data = read_folder(folder)
    assert data.train.inputs.shape == (6, 1, 5, 4)
    expected = [[0, 256 / 65535, 1 / 255, 100 / 255], [65534 / 65535, 1, 1 / 65535, 2 / 65535]]
    np.testing.assert_allclose(data.train.inputs[0, 0, :2], expected, rtol=1e-6)
    np.testing.assert_array_equal(data.train.inputs[1, 0], GREY[4].astype(np.float32) / 255)


def test_grey_of_16_bits_beside_colour_is_the_same_in_all_channels(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    write_images(folder, grey=False)
    image.fromarray(np.full((5, 4), 13107, dtype=np.uint16)).save(folder / "train" / "class a" / "1.png")
    data = read_folder(folder)
    assert data.train.inputs.shape == (6, 3, 5, 4)
    np.testing.assert_allclose(data.train.inputs[0], 0.2, rtol=1e-6)


def test_a_linked_image_that_moves_to_another_class_changes_its_label(folder: Path, tmp_path: Path) -> None:
    write_images(folder)
    link = folder / "train" / "class a" / "1.png"
    link.rename(tmp_path / "kept.png")
    link.symlink_to(tmp_path / "kept.png")
    assert read_folder(folder).train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    link.rename(folder / "train" / "class b" / "1.png")
    assert read_folder(folder).train.labels.tolist() == [0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_without_a_known_white_are_refused(mode: str) -> None:
    image = pytest.importorskip("PIL.Image")
    with pytest.raises(InputError, match=f"x.png has pixels of Pillow's mode {mode}, whose white is unknown: store"):
        formats._pixels(image.new(mode, (4, 5)), Path("x.png"))


def test_the_format_leaves_no_trace(tmp_path: Path) -> None:
    write_mnist(tmp_path / "a")
    (tmp_path / "b").mkdir()
    write_npz(tmp_path / "b" / "mine.npz")
    assert read_folder(tmp_path / "a").fingerprint == read_folder(tmp_path / "b").fingerprint
    assert len(list((tmp_path / "cache" / "sets").iterdir())) == 1


def test_a_name_chooses_among_several(folder: Path) -> None:
    write_npz(folder / "one.npz")
    write_npz(folder / "two.npz", y_train=LABELS[:6] + 1)
    assert read_folder(folder, "two").num_classes == 4
    with pytest.raises(InputError, match="several data sets: choose one of one, two"):
        read_folder(folder)
    with pytest.raises(InputError, match="does not hold 'three': choose one of one, two"):
        read_folder(folder, "three")


def test_digits_are_not_looked_for_in_a_folder(folder: Path) -> None:
    words = f"digits ships with the library and is not read from {folder}"
    with pytest.raises(InputError, match=f"{words}, where no set was found: name the set with --dataset"):
        load_data("digits", folder)
    write_mnist(folder)
    write_npz(folder / "doodles.npz")
    with pytest.raises(InputError, match=f"{words}, which holds doodles, mnist: .* or leave out --data"):
        load_data("digits", folder)
    assert load_data("digits", None).name == "digits"


def test_a_lone_set_takes_any_name_but_a_known_one(folder: Path) -> None:
    write_mnist(folder)
    assert read_folder(folder, "doodles").name == "doodles"
    with pytest.raises(InputError, match=r"the training images and .* \(train-images.* not those of 'mnist'"):
        read_folder(folder, "mnist")


def test_known_pixels_are_recognised(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(folder)
    digests = readers._digests(read_folder(folder))
    (folder / "t10k-labels-idx1-ubyte").touch()  # so that it is read anew
    monkeypatch.setitem(readers.KNOWN_SETS, "mnist", digests)
    assert read_folder(folder, "mnist").name == "mnist"
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(LABELS[1:7]))
    with pytest.raises(InputError, match="the training labels in"):
        read_folder(folder, "mnist")


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_a_truncated_idx_file_is_named(folder: Path, name: str) -> None:
    write_mnist(folder)
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    with pytest.raises(InputError, match=f"{name} holds .* bytes instead of"):
        read_folder(folder)


def test_a_truncated_gzip_is_named(folder: Path) -> None:
    write_mnist(folder, gzip.compress, ".gz")
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(GREY))[:-20])
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte.gz cannot be read to its end"):
        read_folder(folder)


def test_a_wrong_magic_number_is_named(folder: Path) -> None:
    write_mnist(folder)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(GREY))
    with pytest.raises(InputError, match=r"train-labels-idx1-ubyte is not an idx file .* begins with 00 00 08 03"):
        read_folder(folder)


def test_images_and_labels_must_match(folder: Path) -> None:
    write_mnist(folder)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(LABELS[:5]))
    with pytest.raises(InputError, match=r"holds 6 images but .* holds 5 labels"):
        read_folder(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    write_cifar10(folder)
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(InputError, match=r"data_batch_3.bin is missing"):
        read_folder(folder)


def test_a_truncated_batch_is_named(folder: Path) -> None:
    write_cifar10(folder)
    (folder / "data_batch_2.bin").write_bytes(cifar(COLOUR[2:4], LABELS[2:4])[:-7])
    with pytest.raises(InputError, match=r"data_batch_2.bin holds 6139 bytes, which is no multiple of a record's 3073"):
        read_folder(folder)


def test_an_impossible_label_is_named(folder: Path) -> None:
    write_cifar10(folder)
    (folder / "test_batch.bin").write_bytes(cifar(COLOUR_TEST, LABELS[:2] + 10))
    with pytest.raises(InputError, match=r"test_batch.bin holds label 11, but there are 10 classes"):
        read_folder(folder)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": GREY.astype(np.int16)}, "x_train of .* is of type int16"),
        ({"x_train": GREY / 100}, "x_train of .* outside 0 to 1"),
        ({"x_train": GREY[0]}, "x_train of .* has shape"),
        ({"x_train": np.full((6, 5, 4), np.nan)}, "x_train of .* outside 0 to 1"),
        ({"y_train": LABELS[:5]}, "6 images for 5 labels"),
        ({"y_train": LABELS[:6] / 2}, "y_train of .* whole number"),
        ({"y_test": np.array(3)}, "y_test of .* whole number"),
        ({"x_test": GREY_TEST[:, :4]}, "training images of shape .* but test images"),
        ({"x_test": GREY_TEST[:0], "y_test": LABELS[:0]}, "empty"),
        ({"y_train": np.array([None] * 6)}, "not a whole .npz archive of numbers"),
    ],
)
def test_wrong_arrays_are_named(folder: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    write_npz(folder / "bad.npz", **arrays)
    with pytest.raises(InputError, match=message):
        read_folder(folder)


def test_a_broken_npz_is_named(folder: Path) -> None:
    write_npz(folder / "bad.npz")
    (folder / "bad.npz").write_bytes((folder / "bad.npz").read_bytes()[:200])
    with pytest.raises(InputError, match=r"bad.npz is not a whole"):
        read_folder(folder)
    np.savez(folder / "bad.npz", x_train=GREY)
    with pytest.raises(InputError, match=r"bad.npz lacks y_train, x_test, y_test"):
        read_folder(folder)


def test_a_broken_image_is_named(folder: Path) -> None:
    write_images(folder)
    (folder / "train" / "class a" / "1.png").write_bytes(b"not an image")
    with pytest.raises(InputError, match=r"1.png is not a whole image"):
        read_folder(folder)


def test_images_of_different_sizes_are_named(folder: Path) -> None:
    write_images(folder)
    image = pytest.importorskip("PIL.Image")
    image.fromarray(GREY[0][:4]).save(folder / "train" / "class b" / "2.png")
    with pytest.raises(InputError, match=r"2.png is 4×4 but the first image is 5×4"):
        read_folder(folder)


@pytest.mark.parametrize("name", ["data_batch_1", "cifar-10-batches-py/data_batch_1", "cifar-100-python/train"])
def test_pickles_are_refused_with_the_way_out(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(pickle.dumps({"data": b""}))
    for place in {folder, (folder / name).parent}:
        with pytest.raises(InputError, match=r"pickles.* take the binary version .* 'fedfomo data get cifar10'"):
            read_folder(place)


def test_a_packed_archive_is_named(folder: Path) -> None:
    (folder / "cifar-10-binary.tar.gz").touch()
    with pytest.raises(InputError, match="still packed: unpack it"):
        read_folder(folder)


def test_an_empty_and_an_absent_folder_are_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="holds no data set that can be read: put there"):
        read_folder(folder)
    with pytest.raises(InputError, match="there is no folder"):
        read_folder(folder / "nowhere")


def test_a_set_is_decoded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(folder / "small.npz")
    first = read_folder(folder)
    monkeypatch.setattr(readers, "decode_npz", lambda _: pytest.fail("decoded again"))
    assert read_folder(folder).fingerprint == first.fingerprint


def test_a_gzip_that_unpacks_to_far_more_than_its_size_is_refused(folder: Path) -> None:
    write_mnist(folder, gzip.compress, ".gz")
    bomb = folder / "train-images-idx3-ubyte.gz"
    bomb.write_bytes(gzip.compress(bytes(10_000_000)) * 12)
    with pytest.raises(InputError, match="unpacks to more than 50,000,000 bytes"):
        read_folder(folder)


def test_sizes_whose_product_is_beyond_64_bits_are_no_idx_file(folder: Path) -> None:
    write_mnist(folder)
    file = folder / "train-images-idx3-ubyte"
    file.write_bytes(bytes((0, 0, 8, 3)) + b"".join(size.to_bytes(4, "big") for size in (2**31, 2**31, 4)))
    with pytest.raises(InputError, match="holds 16 bytes instead of"):
        read_folder(folder)


def test_what_another_program_would_draw_is_no_image(folder: Path) -> None:
    write_images(folder)
    next((folder / "train").glob("*/*.png")).write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    )
    with pytest.raises(InputError, match="is not a whole image"):
        read_folder(folder)


def test_an_image_of_too_many_pixels_is_refused_unread(folder: Path) -> None:
    from PIL import Image

    write_images(folder)
    Image.new("1", (6000, 6000)).save(next((folder / "train").glob("*/*.png")))
    with pytest.raises(InputError, match="has 6000×6000 pixels"):
        read_folder(folder)


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "mnist.npz").mkdir()
    with pytest.raises(InputError, match=r"mnist.npz is a folder: put the file of that name there"):
        read_folder(tmp_path, "mnist")
