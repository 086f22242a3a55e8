"""llama.cpp's HTTP server with random weights: `python llamacpp_server.py MODEL_FOLDER PORT SLOTS`.

Runs in an environment of its own, which has the packages xllamacpp (the server, in this process) and gguf. The model
is the one that MODEL_FOLDER describes; its file is written beside the description.
"""

import json
import signal
import sys
from pathlib import Path

import gguf
import numpy as np
import xllamacpp


def main(folder: Path, port: int, slots: int) -> None:
    file = folder / "model.gguf"
    _write_model(folder, file)
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.model_alias = {folder.name}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = slots
    params.n_ctx = slots * json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = True
    params.endpoint_slots = True
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    server = xllamacpp.Server(params)
    sys.stderr.write(f"llama.cpp (xllamacpp {xllamacpp.__version__}) on {server.listening_address}\n")
    sys.stderr.flush()
    signal.sigwait({signal.SIGTERM})


def _write_model(folder: Path, file: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    vocabulary, layers, kv_heads = config["vocab_size"], config["num_hidden_layers"], config["num_key_value_heads"]
    keys_and_values = kv_heads * config["head_dim"]

    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(vocabulary)
    _add_tokenizer(writer, folder)

    random = np.random.default_rng(1)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", random.normal(0, 0.02, shape).astype(np.float16))

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(hidden, np.float32))

    add("token_embd", vocabulary, hidden)
    for block in (f"blk.{number}" for number in range(layers)):
        add_norm(f"{block}.attn_norm")
        add(f"{block}.attn_q", hidden, hidden)
        add(f"{block}.attn_k", keys_and_values, hidden)
        add(f"{block}.attn_v", keys_and_values, hidden)
        add(f"{block}.attn_output", hidden, hidden)
        add_norm(f"{block}.ffn_norm")
        add(f"{block}.ffn_gate", inner, hidden)
        add(f"{block}.ffn_up", inner, hidden)
        add(f"{block}.ffn_down", hidden, inner)
    add_norm("output_norm")
    add("output", vocabulary, hidden)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    model, special = tokenizer["model"], {token["id"] for token in tokenizer["added_tokens"]}
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(model["vocab"]))
    writer.add_token_types([kinds.CONTROL if number in special else kinds.NORMAL for number in model["vocab"].values()])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    config = json.loads((folder / "config.json").read_text())
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(json.loads((folder / "tokenizer_config.json").read_text())["chat_template"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
