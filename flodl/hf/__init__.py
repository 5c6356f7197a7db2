"""Load, train and export Hugging Face checkpoints of six encoder families as graphs.

::

    from flodl.hf import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained("owner/name")
    model.predict(["what a day", "what a mess"])

Pickle files are never loaded, and ``transformers`` is not needed. Each name is imported at its
first use. The packages of an extra are imported when they are first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flodl.lazy import lazily as _lazily

if TYPE_CHECKING:
    from flodl.hf.activations import (
        activation,
    )
    from flodl.hf.attention_masks import (
        build_deberta_attention_mask,
        build_extended_attention_mask,
    )
    from flodl.hf.auto import (
        AutoModel,
        AutoModelForMaskedLM,
        AutoModelForQuestionAnswering,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
    )
    from flodl.hf.config_json import (
        AlbertConfig,
        AutoConfig,
        BertConfig,
        DebertaV2Config,
        DistilBertConfig,
        EncoderConfig,
        RobertaConfig,
        XLMRobertaConfig,
        XlmRobertaConfig,
    )
    from flodl.hf.conversion import (
        convert,
    )
    from flodl.hf.embed import (
        TextEncoder,
    )
    from flodl.hf.encoded import (
        EncodedBatch,
    )
    from flodl.hf.encoder_model import (
        BackboneOutputs,
        backbone_outputs,
        set_unpad,
    )
    from flodl.hf.errors import (
        CheckpointFormatError,
        CheckpointMismatchError,
        ConfigError,
        DiskFull,
        FileNotFoundOnHub,
        GatedRepo,
        HubError,
        HubOffline,
        MissingDependencyError,
        PickleOnlyError,
        RepoNotFound,
        RevisionNotFound,
        TokenizerMissingError,
        UnsupportedModelError,
    )
    from flodl.hf.export import (
        export_hf_dir,
    )
    from flodl.hf.families import (
        AlbertForMaskedLM,
        AlbertForQuestionAnswering,
        AlbertForSequenceClassification,
        AlbertForTokenClassification,
        AlbertModel,
        BertForMaskedLM,
        BertForQuestionAnswering,
        BertForSequenceClassification,
        BertForTokenClassification,
        BertModel,
        DebertaV2ForMaskedLM,
        DebertaV2ForQuestionAnswering,
        DebertaV2ForSequenceClassification,
        DebertaV2ForTokenClassification,
        DebertaV2Model,
        DistilBertForMaskedLM,
        DistilBertForQuestionAnswering,
        DistilBertForSequenceClassification,
        DistilBertForTokenClassification,
        DistilBertModel,
        RobertaForMaskedLM,
        RobertaForQuestionAnswering,
        RobertaForSequenceClassification,
        RobertaForTokenClassification,
        RobertaModel,
        XLMRobertaForMaskedLM,
        XlmRobertaForMaskedLM,
        XLMRobertaForQuestionAnswering,
        XlmRobertaForQuestionAnswering,
        XLMRobertaForSequenceClassification,
        XlmRobertaForSequenceClassification,
        XLMRobertaForTokenClassification,
        XlmRobertaForTokenClassification,
        XLMRobertaModel,
        XlmRobertaModel,
    )
    from flodl.hf.head_kind import (
        HeadKind,
    )
    from flodl.hf.keys import (
        bert_legacy_key_rename,
        hf_canonical_save_key,
        keys_have_pooler,
    )
    from flodl.hf.load_report import (
        LoadReport,
    )
    from flodl.hf.loading import (
        load_weights,
    )
    from flodl.hf.lora import (
        LoraLinear,
        LoraSettings,
        add_lora,
        merge_lora,
        unmerge_lora,
    )
    from flodl.hf.lora_files import (
        load_lora,
        save_lora,
    )
    from flodl.hf.losses import (
        masked_lm_loss,
        question_answering_loss,
        sequence_classification_loss,
        token_classification_loss,
    )
    from flodl.hf.matrix import (
        verify_matrix,
    )
    from flodl.hf.outline import (
        build_for_export,
    )
    from flodl.hf.path import (
        HfPath,
        hf_key_from_flodl_key,
        prefix_params,
    )
    from flodl.hf.predict.answer import (
        Answer,
    )
    from flodl.hf.predict.entities import (
        Entity,
    )
    from flodl.hf.predict.fill_mask import (
        MaskFill,
    )
    from flodl.hf.predict.sequence import (
        LabelScore,
    )
    from flodl.hf.predict.tokens import (
        TokenPrediction,
    )
    from flodl.hf.safetensors_io import (
        LoadValidation,
        expected_from_graph,
        load_safetensors_file_into_graph,
        load_safetensors_file_into_graph_with_rename,
        load_safetensors_file_into_graph_with_rename_allow_unused,
        load_safetensors_into_graph,
        load_safetensors_into_graph_with_rename,
        load_safetensors_into_graph_with_rename_allow_unused,
        save_safetensors_file_from_graph,
        save_safetensors_from_graph,
        validate_keys,
        weights_have_pooler,
    )
    from flodl.hf.sentence_settings import (
        SentenceSettings,
    )
    from flodl.hf.surgery import (
        drop_layers,
        extract,
        resize_vocab,
    )
    from flodl.hf.tokenizer import (
        HfTokenizer,
    )
    from flodl.hf.training_data import (
        align_labels,
        mask_tokens,
    )
    from flodl.hf.verify import (
        verify_export,
    )

_NAMES = {
    "activations": ("activation",),
    "attention_masks": (
        "build_deberta_attention_mask",
        "build_extended_attention_mask",
    ),
    "auto": (
        "AutoModel",
        "AutoModelForMaskedLM",
        "AutoModelForQuestionAnswering",
        "AutoModelForSequenceClassification",
        "AutoModelForTokenClassification",
    ),
    "config_json": (
        "AlbertConfig",
        "AutoConfig",
        "BertConfig",
        "DebertaV2Config",
        "DistilBertConfig",
        "EncoderConfig",
        "RobertaConfig",
        "XLMRobertaConfig",
        "XlmRobertaConfig",
    ),
    "conversion": ("convert",),
    "embed": ("TextEncoder",),
    "encoded": ("EncodedBatch",),
    "encoder_model": (
        "BackboneOutputs",
        "backbone_outputs",
        "set_unpad",
    ),
    "errors": (
        "CheckpointFormatError",
        "CheckpointMismatchError",
        "ConfigError",
        "DiskFull",
        "FileNotFoundOnHub",
        "GatedRepo",
        "HubError",
        "HubOffline",
        "MissingDependencyError",
        "PickleOnlyError",
        "RepoNotFound",
        "RevisionNotFound",
        "TokenizerMissingError",
        "UnsupportedModelError",
    ),
    "export": ("export_hf_dir",),
    "families": (
        "AlbertForMaskedLM",
        "AlbertForQuestionAnswering",
        "AlbertForSequenceClassification",
        "AlbertForTokenClassification",
        "AlbertModel",
        "BertForMaskedLM",
        "BertForQuestionAnswering",
        "BertForSequenceClassification",
        "BertForTokenClassification",
        "BertModel",
        "DebertaV2ForMaskedLM",
        "DebertaV2ForQuestionAnswering",
        "DebertaV2ForSequenceClassification",
        "DebertaV2ForTokenClassification",
        "DebertaV2Model",
        "DistilBertForMaskedLM",
        "DistilBertForQuestionAnswering",
        "DistilBertForSequenceClassification",
        "DistilBertForTokenClassification",
        "DistilBertModel",
        "RobertaForMaskedLM",
        "RobertaForQuestionAnswering",
        "RobertaForSequenceClassification",
        "RobertaForTokenClassification",
        "RobertaModel",
        "XLMRobertaForMaskedLM",
        "XLMRobertaForQuestionAnswering",
        "XLMRobertaForSequenceClassification",
        "XLMRobertaForTokenClassification",
        "XLMRobertaModel",
        "XlmRobertaForMaskedLM",
        "XlmRobertaForQuestionAnswering",
        "XlmRobertaForSequenceClassification",
        "XlmRobertaForTokenClassification",
        "XlmRobertaModel",
    ),
    "head_kind": ("HeadKind",),
    "keys": (
        "bert_legacy_key_rename",
        "hf_canonical_save_key",
        "keys_have_pooler",
    ),
    "load_report": ("LoadReport",),
    "loading": ("load_weights",),
    "lora": (
        "LoraLinear",
        "LoraSettings",
        "add_lora",
        "merge_lora",
        "unmerge_lora",
    ),
    "lora_files": (
        "load_lora",
        "save_lora",
    ),
    "losses": (
        "masked_lm_loss",
        "question_answering_loss",
        "sequence_classification_loss",
        "token_classification_loss",
    ),
    "matrix": ("verify_matrix",),
    "outline": ("build_for_export",),
    "path": (
        "HfPath",
        "hf_key_from_flodl_key",
        "prefix_params",
    ),
    "predict.answer": ("Answer",),
    "predict.entities": ("Entity",),
    "predict.fill_mask": ("MaskFill",),
    "predict.sequence": ("LabelScore",),
    "predict.tokens": ("TokenPrediction",),
    "safetensors_io": (
        "LoadValidation",
        "expected_from_graph",
        "load_safetensors_file_into_graph",
        "load_safetensors_file_into_graph_with_rename",
        "load_safetensors_file_into_graph_with_rename_allow_unused",
        "load_safetensors_into_graph",
        "load_safetensors_into_graph_with_rename",
        "load_safetensors_into_graph_with_rename_allow_unused",
        "save_safetensors_file_from_graph",
        "save_safetensors_from_graph",
        "validate_keys",
        "weights_have_pooler",
    ),
    "sentence_settings": ("SentenceSettings",),
    "surgery": (
        "drop_layers",
        "extract",
        "resize_vocab",
    ),
    "tokenizer": ("HfTokenizer",),
    "training_data": (
        "align_labels",
        "mask_tokens",
    ),
    "verify": ("verify_export",),
}

__getattr__, __dir__ = _lazily(__name__, _NAMES)

__all__ = [
    "AlbertConfig",
    "AlbertForMaskedLM",
    "AlbertForQuestionAnswering",
    "AlbertForSequenceClassification",
    "AlbertForTokenClassification",
    "AlbertModel",
    "Answer",
    "AutoConfig",
    "AutoModel",
    "AutoModelForMaskedLM",
    "AutoModelForQuestionAnswering",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "BackboneOutputs",
    "BertConfig",
    "BertForMaskedLM",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertModel",
    "CheckpointFormatError",
    "CheckpointMismatchError",
    "ConfigError",
    "DebertaV2Config",
    "DebertaV2ForMaskedLM",
    "DebertaV2ForQuestionAnswering",
    "DebertaV2ForSequenceClassification",
    "DebertaV2ForTokenClassification",
    "DebertaV2Model",
    "DiskFull",
    "DistilBertConfig",
    "DistilBertForMaskedLM",
    "DistilBertForQuestionAnswering",
    "DistilBertForSequenceClassification",
    "DistilBertForTokenClassification",
    "DistilBertModel",
    "EncodedBatch",
    "EncoderConfig",
    "Entity",
    "FileNotFoundOnHub",
    "GatedRepo",
    "HeadKind",
    "HfPath",
    "HfTokenizer",
    "HubError",
    "HubOffline",
    "LabelScore",
    "LoadReport",
    "LoadValidation",
    "LoraLinear",
    "LoraSettings",
    "MaskFill",
    "MissingDependencyError",
    "PickleOnlyError",
    "RepoNotFound",
    "RevisionNotFound",
    "RobertaConfig",
    "RobertaForMaskedLM",
    "RobertaForQuestionAnswering",
    "RobertaForSequenceClassification",
    "RobertaForTokenClassification",
    "RobertaModel",
    "SentenceSettings",
    "TextEncoder",
    "TokenPrediction",
    "TokenizerMissingError",
    "UnsupportedModelError",
    "XLMRobertaConfig",
    "XLMRobertaForMaskedLM",
    "XLMRobertaForQuestionAnswering",
    "XLMRobertaForSequenceClassification",
    "XLMRobertaForTokenClassification",
    "XLMRobertaModel",
    "XlmRobertaConfig",
    "XlmRobertaForMaskedLM",
    "XlmRobertaForQuestionAnswering",
    "XlmRobertaForSequenceClassification",
    "XlmRobertaForTokenClassification",
    "XlmRobertaModel",
    "activation",
    "add_lora",
    "align_labels",
    "backbone_outputs",
    "bert_legacy_key_rename",
    "build_deberta_attention_mask",
    "build_extended_attention_mask",
    "build_for_export",
    "convert",
    "drop_layers",
    "expected_from_graph",
    "export_hf_dir",
    "extract",
    "hf_canonical_save_key",
    "hf_key_from_flodl_key",
    "keys_have_pooler",
    "load_lora",
    "load_safetensors_file_into_graph",
    "load_safetensors_file_into_graph_with_rename",
    "load_safetensors_file_into_graph_with_rename_allow_unused",
    "load_safetensors_into_graph",
    "load_safetensors_into_graph_with_rename",
    "load_safetensors_into_graph_with_rename_allow_unused",
    "load_weights",
    "mask_tokens",
    "masked_lm_loss",
    "merge_lora",
    "prefix_params",
    "question_answering_loss",
    "resize_vocab",
    "save_lora",
    "save_safetensors_file_from_graph",
    "save_safetensors_from_graph",
    "sequence_classification_loss",
    "set_unpad",
    "token_classification_loss",
    "unmerge_lora",
    "validate_keys",
    "verify_export",
    "verify_matrix",
    "weights_have_pooler",
]
