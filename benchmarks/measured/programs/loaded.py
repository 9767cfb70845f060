"""Load a model of transformers on the CPU in fp32 and move it to the device.

    python loaded.py NAME

The peaks count from when the model is on the device.
"""

import sys

import torch
import transformers

BART = {"encoder_attention_heads": 16, "decoder_attention_heads": 16}
LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
HALF = {
    "d_model": 768,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 12,
}
ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 1}
MODELS = {
    "bart-base": ("BartForConditionalGeneration", {"vocab_size": 50265, **HALF}),
    "bart-large-cnn": ("BartForConditionalGeneration", {"vocab_size": 50264, **BART}),
    "gpt2": ("GPT2LMHeadModel", {}),
    "distilgpt2": ("GPT2LMHeadModel", {"n_layer": 6}),
    "bert-large-qa": ("BertForQuestionAnswering", LARGE),
    "bert-large-cased-mlm": ("BertForMaskedLM", {"vocab_size": 28996, **LARGE}),
    "roberta-base-mlm": ("RobertaForMaskedLM", {"vocab_size": 50265, **ROBERTA}),
    "albert-qa": (
        "AlbertForQuestionAnswering",
        {
            "vocab_size": 30000,
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
        },
    ),
    "mbart-large-50": ("MBartForConditionalGeneration", {"vocab_size": 250054, **BART}),
    "xlm-roberta-base-qa": ("XLMRobertaForQuestionAnswering", {"vocab_size": 250002, **ROBERTA}),
}

name, settings = MODELS[sys.argv[1]]
architecture = getattr(transformers, name)
model = architecture(architecture.config_class(**settings))
model.to("cuda")
torch.cuda.reset_peak_memory_stats()
print(torch.cuda.memory_allocated())
held = torch.zeros(1, device="cuda")
