"""TensorBoard's records, made of tensors, arrays and numbers; by the package tensorboard's own classes."""

from __future__ import annotations

import io
import struct
import time
import zlib
from collections.abc import Iterator
from typing import Any

from kiln._core import Tensor
from kiln.errors import describe, message

try:
    from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2
    from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "tensorboard":
        raise
    said = "kiln.utils.tensorboard: the package tensorboard is not installed; pip install tensorboard"
    raise ModuleNotFoundError(said, name=error.name) from None


def file_writer(folder: str, max_queue: int, flush_secs: int, suffix: str) -> Any:
    """What appends events to a new file in a folder."""
    return EventFileWriter(folder, max_queue, flush_secs, suffix)


def event(summary: Any, step: int | None, walltime: float | None) -> Any:
    """A summary at a step and a time."""
    made = event_pb2.Event(summary=summary)
    made.wall_time = time.time() if walltime is None else walltime
    if step is not None:
        made.step = step
    return made


def session_start(step: int) -> Any:
    """An event that says: events from this step on that are in older files do not count."""
    log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    return event_pb2.Event(step=step, session_log=log, wall_time=time.time())


def array(x: Any) -> Any:
    """A tensor, array, number or list as NumPy's array; bfloat16 as float32."""
    import numpy as np

    if isinstance(x, Tensor):
        x = x.detach()
        x = (x.float() if x.dtype.name == "bfloat16" else x).numpy()
    return np.asarray(x)


def number(x: Any) -> float:
    """A number, or the only element of a tensor or array. ValueError for several."""
    found = array(x)
    if found.size != 1 or found.dtype.kind not in "biuf":
        raise ValueError(message("tensorboard", "a number", describe(x)))
    return float(found.reshape(()))


def scalar(tag: str, value: Any) -> Any:
    """A point of a curve."""
    return summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, simple_value=number(value))])


def histogram(tag: str, values: Any, bins: Any) -> Any:
    """Counts between edges; of "tensorflow", edges grow by a tenth from 1e-12 on, on both sides of 0."""
    import numpy as np

    found = array(values).astype(np.float64).reshape(-1)
    found = found[np.isfinite(found)]
    if found.size == 0:
        raise ValueError(message("add_histogram", "a finite value", describe(values)))
    if isinstance(bins, str) and bins == "tensorflow":
        up = 1e-12 * 1.1 ** np.arange(int(np.log(1e32) / np.log(1.1)))
        bins = np.concatenate([-up[::-1], [0.0], up])
    counts, edges = np.histogram(found, bins=bins)
    some = np.flatnonzero(counts)
    if some.size:  # without the empty ones at both ends
        first, last = some[0], some[-1] + 1
        counts, edges = counts[first:last], edges[first : last + 1]
    made = summary_pb2.HistogramProto(
        min=found.min(),
        max=found.max(),
        num=found.size,
        sum=found.sum(),
        sum_squares=found.dot(found),
        bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )
    return summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, histo=made)])


def image(tag: str, pixels: Any, dims: str) -> Any:
    """A picture, or several one beside the other."""
    return _picture(tag, _in_order(array(pixels), dims))


def figure(tag: str, figures: Any, close: bool) -> Any:
    """What Matplotlib draws, one beside the other."""
    import numpy as np

    drawn = []
    for one in figures if isinstance(figures, (list, tuple)) else [figures]:
        one.canvas.draw()
        drawn.append(np.asarray(one.canvas.buffer_rgba())[..., :3])
        if close:
            from matplotlib import pyplot

            pyplot.close(one)
    return _picture(tag, np.concatenate(drawn, axis=1))


def _in_order(pixels: Any, dims: str) -> Any:
    """Bytes of dims (H, W, C)."""
    import numpy as np

    names = dims.upper()
    if len(names) != pixels.ndim or set(names) not in ({*"HW"}, {*"CHW"}, {*"NCHW"}, {*"NHW"}):
        raise ValueError(message("add_image", f"dims {dims}", f"shape {tuple(pixels.shape)}"))
    for missing in "NC":
        if missing not in names:
            pixels, names = pixels[None], missing + names
    pixels = pixels.transpose([names.index(dim) for dim in "NHWC"])
    if pixels.dtype != np.uint8:
        pixels = np.clip(pixels.astype(np.float64) * 255, 0, 255).astype(np.uint8)
    if pixels.shape[-1] == 1:
        pixels = np.repeat(pixels, 3, axis=-1)
    if pixels.shape[-1] not in (3, 4):
        raise ValueError(message("add_image", "1, 3 or 4 channels", str(pixels.shape[-1])))
    return np.concatenate(list(pixels), axis=1)


def _picture(tag: str, pixels: Any) -> Any:
    height, width, channels = pixels.shape
    made = summary_pb2.Summary.Image(
        height=height, width=width, colorspace=channels, encoded_image_string=png(pixels)
    )
    return summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, image=made)])


def png(pixels: Any) -> bytes:
    """Bytes (H, W, 3 or 4) as a PNG file."""
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # no filter
    file = io.BytesIO(b"")
    file.write(b"\x89PNG\r\n\x1a\n")
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 6, 0, 0, 0)
    for kind, data in ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
        file.write(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)))
    return file.getvalue()


def text(tag: str, words: str) -> Any:
    """A text, for the plugin that shows Markdown."""
    plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="text", content=b"\x08\x00")
    shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
    made = tensor_pb2.TensorProto(dtype="DT_STRING", string_val=[words.encode()], tensor_shape=shape)
    about = summary_pb2.SummaryMetadata(plugin_data=plugin)
    value = summary_pb2.Summary.Value(tag=f"{tag}/text_summary", metadata=about, tensor=made)
    return summary_pb2.Summary(value=[value])


def settings(given: dict[str, Any], metrics: dict[str, Any], domains: dict[str, list[Any]]) -> Iterator[Any]:
    """What the plugin of settings reads: the experiment, this session's begin with its values, its end."""
    experiment, session = api_pb2.Experiment(), plugin_data_pb2.SessionStartInfo()
    for name, value in given.items():
        info = experiment.hparam_infos.add(name=name)
        if isinstance(value, Tensor):
            value = value.item()
        if isinstance(value, bool):
            info.type, session.hparams[name].bool_value = api_pb2.DATA_TYPE_BOOL, value
        elif isinstance(value, (int, float)):
            info.type, session.hparams[name].number_value = api_pb2.DATA_TYPE_FLOAT64, value
        elif isinstance(value, str):
            info.type, session.hparams[name].string_value = api_pb2.DATA_TYPE_STRING, value
        elif value is not None:
            raise ValueError(message("add_hparams", "numbers, texts and bools", describe(value)))
        if name in domains:
            info.domain_discrete.extend(domains[name])
    for name in metrics:
        experiment.metric_infos.add(name=api_pb2.MetricName(tag=name))
    end = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS)
    for tag, kind, record in (
        ("_hparams_/experiment", "experiment", experiment),
        ("_hparams_/session_start_info", "session_start_info", session),
        ("_hparams_/session_end_info", "session_end_info", end),
    ):
        content = plugin_data_pb2.HParamsPluginData(version=0, **{kind: record})
        plugin = summary_pb2.SummaryMetadata.PluginData(
            plugin_name="hparams", content=content.SerializeToString()
        )
        about = summary_pb2.SummaryMetadata(plugin_data=plugin)
        yield summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, metadata=about)])
