"""Gemma 3n (Google, 2025): MobileNetV5 on images of one size: convolutions, later also attention of many heads to one
head of keys and values. Two of its four stages are fused to 16 x 16 rows."""

import math
from collections.abc import Iterator

import numpy as np

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.gguf.reader import GGUF
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.ops.cost import Cost, CostModel
from localinfer.kernels.signatures import RELATIVE_ATTENTION, TRANSPOSE
from localinfer.multimodal.encoder_graph.encoder_builder import CHANNELS, EncoderBuilder, PatchInput
from localinfer.multimodal.encoder_graph.feature_maps import FeatureMap, FeatureMaps, strided
from localinfer.multimodal.encoder_graph.row_order import consecutive
from localinfer.multimodal.encoders.arrangement import surround

ARCHITECTURES = ("gemma3n",)
HAS_LAYERS, ANY_SIZE = False, True  # keys of files say how many layers other models have, and sizes that do not matter
OUTPUT = (16, 16)
STAGES = 4
FUSED = 2  # stages, the last ones
STEM, STEM_SIZE = "v.conv_stem", 3
EPSILON = 1e-6
UNUSED = ("mm.embedding.weight", "mm.hard_emb_norm.weight")  # embeddings of tokens that no text has
MAX_PLACES = 1 << 18  # of the first map; published models have 384 x 384
LANES = 16  # keys that the kernel scores at once
arrange = surround("\n\n<start_of_image>", "<end_of_image>\n\n")


def is_bidirectional(model: GGUF) -> bool:  # noqa: ARG001 of all models
    """Return that rows of an image attend to earlier ones only."""
    return False


def n_rows(f: GGUF, grid: tuple[int, int], n: int) -> int:  # noqa: ARG001 (one signature for all)
    """Return the number of rows that it makes of every image."""
    return OUTPUT[0] * OUTPUT[1]


def build(g: EncoderBuilder) -> Buffer:
    """The first convolution, four stages, their fusion, and a matrix between norms. The host gives what the first
    convolution reads: the grid is that of its results."""
    if g.n_patches > MAX_PLACES:
        raise LocalInferError(f"an image of {2 * g.grid[0]} x {2 * g.grid[1]} pixels is too large")
    g.model.eps = EPSILON
    g.hparams.accept("patch_size")
    g.tensors.accept(*UNUSED)
    maps, ends = FeatureMaps(g), []
    x = stem(g, maps)
    for stage in range(STAGES):
        for number, blk in enumerate(blocks(g, stage)):
            x = block(g, maps, x, blk, 1 if number else 2)
            g.point(x.x, f"{blk}resid_post")
        ends.append(x)
    y = g.norm(fuse(g, maps, ends[-FUSED:]), "v.msfa.norm", in_place=True)
    g.scale(y, math.sqrt(y.n))
    y = g.norm(y, "mm.soft_emb_norm")
    projected = g.matmul(y, "mm.input_projection", g.output_length)
    return g.norm_groups(projected, projected.n)


def blocks(g: EncoderBuilder, stage: int) -> Iterator[str]:
    """Iterate over the prefixes of the blocks of a stage, of which there must be one."""
    names = [name.split(".") for name in g.f.tensors if name.startswith(f"v.blk.{stage}.")]
    count = len({words[3] for words in names})
    yield from (f"v.blk.{stage}.{number}." for number in range(max(count, 1)))


def stem(g: EncoderBuilder, maps: FeatureMaps) -> FeatureMap:
    """Return the first map."""
    n = maps.n_out(f"{STEM}.conv.weight")
    weight = g.tensors.patch_matrix((f"{STEM}.conv.weight",), n, CHANNELS, STEM_SIZE)
    patches = maps.buffer(weight.shape[1], g.grid)
    g.input = PatchInput(patches, 0, consecutive((g.n_patches,)), patches, np.zeros((0, patches.n), np.float32))
    x = g.product(patches, weight, bias=maps.vector(f"{STEM}.conv.bias", n))
    return FeatureMap(activated(g, x, f"{STEM}.bn"), g.grid)


def activated(g: EncoderBuilder, x: Buffer, norm: str) -> Buffer:
    """Return the activations after a norm, in place."""
    return g.gate(g.norm(x, norm, in_place=True), None, "gelu")


def block(g: EncoderBuilder, maps: FeatureMaps, x: FeatureMap, blk: str, stride: int) -> FeatureMap:
    """Return what a block makes of a map: added to it, if both have the same shape."""
    if g.tensors.has(f"{blk}attn.query.proj.weight"):
        with g.graph.reuse_buffers():
            g.add(x.x, scaled(g, maps, attend(g, maps, x, blk), blk))
        return x
    is_edge = g.tensors.has(f"{blk}conv_exp.weight")
    last, norm = ("conv_pwl", "bn2") if is_edge else ("pw_proj.conv", "pw_proj.bn")
    n = maps.n_out(f"{blk}{last}.weight")
    is_added = stride == 1 and n == x.x.n
    size = strided(x.size, stride)
    result = None if is_added else maps.buffer(n, size)
    with g.graph.reuse_buffers():
        h = edge_units(g, maps, x, blk, stride) if is_edge else inverted_units(g, maps, x, blk, stride)
        if result is not None and h.size != size:
            raise g.f.error(f"tensor {blk}{last}.weight", "is in a block whose convolutions do not halve the map")
        y = g.norm(maps.pointwise(h.x, f"{blk}{last}.weight", out=result), f"{blk}{norm}", in_place=True)
        y = scaled(g, maps, y, blk)
        if is_added:
            g.add(x.x, y)
    return x if result is None else FeatureMap(result, size)


def edge_units(g: EncoderBuilder, maps: FeatureMaps, x: FeatureMap, blk: str, stride: int) -> FeatureMap:
    """Return the hidden units of a block of the first stage: a convolution of squares."""
    h = maps.convolve(x, f"{blk}conv_exp.weight", stride)
    return FeatureMap(activated(g, h.x, f"{blk}bn1"), h.size)


def inverted_units(g: EncoderBuilder, maps: FeatureMaps, x: FeatureMap, blk: str, stride: int) -> FeatureMap:
    """Return the hidden units of an inverted residual block (Qin et al., 2024): a matrix, with depthwise convolutions
    before and after it if the file has them. The last convolution has the stride."""
    start, middle = f"{blk}dw_start", f"{blk}dw_mid"
    has_middle = g.tensors.has(f"{middle}.conv.weight")
    if g.tensors.has(f"{start}.conv.weight"):
        x = maps.depthwise(x, f"{start}.conv.weight", 1 if has_middle else stride)
        g.norm(x.x, f"{start}.bn", in_place=True)
    h = activated(g, maps.pointwise(x.x, f"{blk}pw_exp.conv.weight"), f"{blk}pw_exp.bn")
    if not has_middle:
        return FeatureMap(h, x.size)
    h, size = maps.depthwise(FeatureMap(h, x.size), f"{middle}.conv.weight", stride)
    return FeatureMap(activated(g, h, f"{middle}.bn"), size)


def scaled(g: EncoderBuilder, maps: FeatureMaps, y: Buffer, blk: str) -> Buffer:
    """Multiply the columns by the layer scale, if the file has one."""
    if g.tensors.has(f"{blk}layer_scale.gamma"):
        g.scale_by(y, maps.vector(f"{blk}layer_scale.gamma", y.n))
    return y


def attend(g: EncoderBuilder, maps: FeatureMaps, x: FeatureMap, blk: str) -> Buffer:
    """Return the attention of all places to all, or to every other one in both directions. All heads of queries share
    one head of keys and values (Shazeer, 2019): a head of a place is a row of the kernel."""
    h = FeatureMap(g.norm(x.x, f"{blk}norm"), x.size)
    q = maps.pointwise(h.x, f"{blk}attn.query.proj.weight")
    k, v = (key_or_value(g, maps, h, f"{blk}attn.{name}") for name in ("key", "value"))
    size, count, n_keys = k.n, h.x.rows.capacity, k.rows.capacity
    if size % LANES or q.n % size or (v.n, v.rows.capacity) != (size, n_keys):
        what = f"makes {q.n} values of a query, {size} of a key, {v.n} of a value, which are not supported"
        raise g.f.error(f"tensor {blk}attn.query.proj.weight", what, UnsupportedError)
    keys = g.graph.buffer(-(-(n_keys + LANES) // LANES) * LANES, maps.rows(size))
    g.graph.op("transpose", TRANSPOSE, k.rows, chunks=(1, 8), x=k, n=size, first=0, y=keys, y_n=keys.n)
    rows = maps.rows(count * (q.n // size))
    oldest, newest = (g.constants.region(np.full(rows.capacity, row, np.int32)) for row in (0, n_keys - 1))
    y = g.graph.buffer(q.n, q.rows)
    g.graph.need_scratch(8 * size + 4 * (n_keys + 2 * LANES))
    g.graph.op(
        f"{blk}attention", RELATIVE_ATTENTION, rows, chunks=(1, 8), cost=CostModel(token=Cost(fmas=2 * n_keys * size)),
        q=q, bias_u=0, bias_v=0, k=keys, k_stride=keys.n, v=v, p=0, p_stride=0, p_step=0, first=0, oldest=oldest,
        newest=newest, heads=1, size=size, scale=size**-0.5, cap=0.0, y=y,
    )  # fmt: skip
    output = maps.pointwise(y, f"{blk}attn.output.proj.weight")
    if output.n != x.x.n:
        raise g.f.error(f"tensor {blk}attn.output.proj.weight", f"has {output.n} rows; they must be {x.x.n}")
    return output


def key_or_value(g: EncoderBuilder, maps: FeatureMaps, h: FeatureMap, name: str) -> Buffer:
    """Return the keys or the values: of a smaller map, if the file has the convolution that makes it."""
    if g.tensors.has(f"{name}.down_conv.weight"):
        h = maps.depthwise(h, f"{name}.down_conv.weight", 2)
        g.norm(h.x, f"{name}.norm", in_place=True)
    return maps.pointwise(h.x, f"{name}.proj.weight")


def fuse(g: EncoderBuilder, maps: FeatureMaps, found: list[FeatureMap]) -> Buffer:
    """Return 16 x 16 rows, made of maps of which the first one is the largest: their channels side by side, and an
    inverted residual block."""
    size = found[0].size
    both = maps.buffer(sum(each.x.n for each in found), size)
    first = 0
    for each in found:
        g.copy_columns(each.x if each.size == size else maps.enlarge(each, size), both, first)
        first += each.x.n
    h = activated(g, maps.pointwise(both, "v.msfa.ffn.pw_exp.conv.weight"), "v.msfa.ffn.pw_exp.bn")
    y = g.norm(maps.pointwise(h, "v.msfa.ffn.pw_proj.conv.weight"), "v.msfa.ffn.pw_proj.bn", in_place=True)
    if any(old % new for old, new in zip(size, OUTPUT, strict=True)):
        what = f"makes maps of {size[0]} x {size[1]} places, which 16 x 16 do not divide"
        raise g.f.error("clip.vision.image_size", what, UnsupportedError)
    return y if size == OUTPUT else maps.average(FeatureMap(y, size), OUTPUT)
