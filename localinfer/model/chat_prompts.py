"""Prompts of conversations, rendered with the chat template."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from localinfer.model.base import ModelBase

if TYPE_CHECKING:  # `generate` does not need chat templates
    from localinfer.chat_template.conversation import Message
    from localinfer.chat_template.prompt import Prompt
    from localinfer.model.media_encoder import MediaIds
    from localinfer.multimodal.access import MediaAccess

MIN_ANSWER_TOKENS = 256


class ChatPrompts(ModelBase):
    """Render conversations to prompts, and shorten those that do not fit in the context."""

    def render(self, messages: Sequence["Message"], *, tools: Sequence[Mapping[str, object]] | None = None,
               documents: Sequence[Mapping[str, object]] | None = None,
               template_kwargs: Mapping[str, object] | None = None, add_generation_prompt: bool = True,
               continue_final_message: bool = False, parse_special: bool = False, **options: object) -> "Prompt":
        """Apply the chat template to a conversation, and return the prompt: its `text` and its token `ids`.

        `tools` (JSON schemas of functions), `documents` ({"title": ..., "text": ...}) and `template_kwargs`, such as
        `enable_thinking=False`, are passed to the template. The prompt ends with the generation prompt, unless
        `add_generation_prompt` is False. With `continue_final_message`, it ends inside the last message, which the
        model continues. The option `system_prompt` is added, unless the messages begin with a system message. The texts
        of messages never become control tokens, unless `parse_special` is set.

        Images and sounds of the messages are encoded; `media_access`, which is also in `options`, limits the files and
        addresses that they may name. With `counts_media` there, nothing is encoded, and zeros take the place of their
        token ids.

        Raises UnsupportedError if the model has no chat template, UsageError for an invalid conversation,
        LocalInferError for an error of the template.
        """
        from localinfer.chat_template.conversation import Conversation

        access = cast("MediaAccess | None", options.pop("media_access", None))
        media_ids = None if options.pop("counts_media", False) else self.engine.prompt_media.begin()
        messages = self._encode_messages(messages, access, media_ids)
        conversation = Conversation(
            messages=messages, tools=tools, documents=documents, template_kwargs=template_kwargs or {},
            add_generation_prompt=add_generation_prompt, continue_final_message=continue_final_message)
        prompt_builder = self._resources.prompt_builder()
        return prompt_builder.build(
            conversation, self._run_options(options), parse_special=parse_special, on_wait=self._report_prompt)

    def _encode_messages(
        self, messages: "Sequence[Message]", access: "MediaAccess | None", media_ids: "MediaIds | None"
    ) -> "Sequence[Message]":
        """Return the messages with token ids in place of images and sounds: see `MediaEncoder.encode_messages`."""
        hooks = self.engine.sequence.modifiers.hooks
        return self._resources.encode_messages(messages, access, media_ids, self.n_ctx, hooks)

    def truncate_messages(self, messages: Sequence["Message"], **render_options: Any) -> "list[Message]":
        """Return the messages that fit in the context, without the oldest turns if necessary (context shift).

        Returns all messages if they leave space for an answer: `n_predict` tokens, at least an eighth of the context or
        MIN_ANSWER_TOKENS, but at most a quarter of the context. Otherwise drops the oldest turns until half of the
        context is free, so that the prompt is not evaluated again after every answer. Keeps the messages before the
        first turn, such as the system prompt, and always the last turn.

        `render_options` are arguments of `render`.
        """
        from localinfer.chat_template.truncation import drop_oldest_turns

        def count_tokens(left: Sequence["Message"]) -> int:
            return len(self.render(left, counts_media=True, **render_options).ids)

        n_predict = int(render_options.get("n_predict", self.options.n_predict))
        n_answer = min(max(self.n_ctx // 8, MIN_ANSWER_TOKENS, n_predict), self.n_ctx // 4)
        if count_tokens(messages) <= self.n_ctx - n_answer:
            return list(messages)
        return drop_oldest_turns(messages, count_tokens, self.n_ctx // 2)

    def require_chat_template(self) -> None:
        """Start the process of the chat template ahead of time.

        Raises UnsupportedError if the model has no chat template, UsageError for an unknown template or invalid
        template variables.
        """
        self._resources.prompt_builder().prepare(self.options)
