"""A user's script with every public call. It is type-checked, not run: see tests/test_typing.py."""

import asyncio
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import localinfer
from localinfer import (
    ContextOverflowError,
    GenerationResult,
    LocalInferError,
    Model,
    Options,
    RankedDocument,
    RowInfo,
    UsageError,
)

MESSAGES: list[localinfer.Message] = [{"role": "user", "content": "Why is the sky blue?"}]
QUESTION: localinfer.Message = {
    "role": "user", "content": [{"type": "image", "image": "cat.jpg"}, {"type": "text", "text": "What is this?"}],
}  # fmt: skip
TOOLS = [{"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]


def generate(model: Model) -> None:
    result = model.generate("The capital of France is", max_tokens=8, temperature=0.0, logprobs=2)
    print(result.text, result.tokens, result.finish_reason, result.reasoning, result.stats.generated_tokens)
    for entry in result.logprobs:
        print(entry.text, entry.id, entry.logprob, [each.text for each in entry.top])
    results: list[GenerationResult] = model.generate(["One", "Two"], n_predict=4, stop=["\n"])
    print([each.text for each in results], model.generate([1, 2, 3]).text)
    for piece in model.stream("Once", top_k=40, top_p=0.9, seed=1):
        print(piece.text, piece.id, piece.kind, end="")
    sampler = model.sampler(temp=0.7)
    print(model.generate("<__media__> This is", media=["cat.jpg"]).text, model.media_info("cat.jpg").n_tokens)
    print(model.generate("Apples", sampler=sampler, schema={"type": "object"}).text)


def chat(model: Model) -> None:
    result = model.chat(MESSAGES, tools=TOOLS, system_prompt="Be brief.", reasoning_budget=100)
    for call in result.tool_calls:
        print(call.name, call.arguments.get("city"), call.id)
    for piece in model.stream_chat(MESSAGES, repetition_penalty=1.1):
        print(piece.text, end="", flush=True)
    print(model.render(MESSAGES).text, model.render(MESSAGES, add_generation_prompt=False).ids)
    remaining: list[localinfer.Message] = model.truncate_messages(MESSAGES)
    if "image" in model.media_kinds:
        print(model.chat([QUESTION]).text, model.projector.kinds)
    print(len(remaining), result.as_message()["role"])


async def coroutines(model: Model) -> None:
    print((await model.agenerate("Hello", n_predict=4)).text, (await model.achat(MESSAGES)).text)
    async for piece in model.astream("Hello"):
        print(piece.text)
    async for piece in model.astream_chat(MESSAGES):
        print(piece.text)


def change_activations(model: Model) -> None:
    def steer(values: NDArray[np.float32], info: RowInfo) -> NDArray[np.float32]:
        values[info.positions > 3] += 1
        return values

    with model.capture("blk.*.resid_post") as trace, model.patch({"blk.0.attn_out": steer}):
        model.generate("Hello")
    print(trace["blk.0.resid_post"].shape, trace.tokens, trace.positions("blk.0.resid_post"), model.points()["logits"])
    lens = model.lens("Hello", top=3)
    print(lens.text(0, 0), lens.probabilities.shape, lens.points)
    maps, found = model.attention("Hello", layers=[0]), model.token_probabilities("Hello you", top=3)
    print(maps[0, 0].weights.shape, maps.mean(0).name, maps.entropies[0], found.perplexity, found.ranks.shape)


def inspect(model: Model) -> None:
    ids = model.tokenize("Hello", add_special=True)
    print(model.detokenize(ids), model.logits(ids).shape, model.n_ctx, model.n_vocab, model.n_ctx_train, repr(model))
    print([piece.logprob for piece in model.score("Hello", ids)], model.metadata.get("general.name"))
    weights = localinfer.dequantize(model.tensors["token_embd.weight"])
    ranked: list[RankedDocument] = model.rerank("panda", ["a bear", "a fish"])
    print([rows.shape for rows in model.embed_tokens(["a"])], model.count_rerank_tokens("panda", ["a bear"]))
    print(weights.shape, model.embed(["a", "b"], pooling="mean").shape, ranked[0].document, ranked[0].score)
    print(model.prompts.by_name, model.prompts.default)
    model.save_cache("prompt.cache")
    print(model.load_cache("prompt.cache"))


def unmask(model: localinfer.Model) -> None:
    if model.is_diffusion:
        model.on_diffusion_step = lambda step: print(step.number, step.total, step.ids)
        print(model.generate("Hello", diffusion_steps=16).text)


def adapt(model: localinfer.Model) -> None:
    model.set_lora_scales({0: 0.5})
    print([path.name for path in model.lora_adapters], sum(model.lora_scales))
    print(model.generate("Hello", lora_scales={0: 1.0}).text)


def main() -> None:
    localinfer.convert("checkpoint/", "f16.gguf", "F16")
    localinfer.imatrix("f16.gguf", "text", "imatrix.gguf", covariance=True)
    localinfer.quantize("f16.gguf", "q4.gguf", "Q4_K_M", imatrix="imatrix.gguf", effort="max", force=True)
    print(localinfer.merge_lora("q4.gguf", "merged.gguf", [("adapter.gguf", 0.5), (Path("peft/"), 1.0)], force=True))
    vector: Path = localinfer.control_vector("q4.gguf", ["Be kind."], ["Be rude."], "vector.gguf", method="pca")
    localinfer.load("q4.gguf", control_vector_scaled=[f"{vector}:0.5"]).close()
    print(localinfer.perplexity("q4.gguf", "text", ctx_size=512).value)
    print(localinfer.compare("f16.gguf", "q4.gguf", "text", max_chunks=4).divergence.mean.value)
    evaluation = localinfer.evaluate("q4.gguf", "hellaswag", ["hellaswag_val.jsonl"], limit=400, ctx_size=512)
    print(evaluation.scores["acc_norm"].interval, evaluation.items[0].correct["acc"])
    print([check.ratio for check in localinfer.verify("q4.gguf", "text", n_tokens=16, precision="high").checks])
    try:
        with localinfer.load("q4.gguf", options=Options(ctx_size=4096), threads=2, cache_type_k="q8_0") as model:
            generate(model)
            unmask(model)
            chat(model)
            adapt(model)
            asyncio.run(coroutines(model))
            change_activations(model)
            inspect(model)
    except (ContextOverflowError, UsageError) as error:
        print(error)
    except LocalInferError as error:
        print(type(error).__name__, error)


if __name__ == "__main__":
    main()
