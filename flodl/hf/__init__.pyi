from .activations import (
    activation as activation,
)
from .attention_masks import (
    build_deberta_attention_mask as build_deberta_attention_mask,
    build_extended_attention_mask as build_extended_attention_mask,
)
from .auto_tokenizer import (
    AutoTokenizer as AutoTokenizer,
)
from .batch_encoding import (
    BatchEncoding as BatchEncoding,
)
from .collators import (
    DataCollatorForLanguageModeling as DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification as DataCollatorForTokenClassification,
    DataCollatorWithPadding as DataCollatorWithPadding,
)
from .config_json import (
    AlbertConfig as AlbertConfig,
    AutoConfig as AutoConfig,
    BertConfig as BertConfig,
    DebertaV2Config as DebertaV2Config,
    DistilBertConfig as DistilBertConfig,
    EncoderConfig as EncoderConfig,
    ModernBertConfig as ModernBertConfig,
    RobertaConfig as RobertaConfig,
    XLMRobertaConfig as XLMRobertaConfig,
    XlmRobertaConfig as XlmRobertaConfig,
)
from .conversion import (
    convert as convert,
)
from .embed import (
    TextEncoder as TextEncoder,
)
from .encoded import (
    EncodedBatch as EncodedBatch,
)
from .encoder_model import (
    BackboneOutputs as BackboneOutputs,
    backbone_outputs as backbone_outputs,
    set_unpad as set_unpad,
)
from .errors import (
    CheckpointFormatError as CheckpointFormatError,
    CheckpointMismatchError as CheckpointMismatchError,
    ConfigError as ConfigError,
    DiskFull as DiskFull,
    FileNotFoundOnHub as FileNotFoundOnHub,
    GatedRepo as GatedRepo,
    HubError as HubError,
    HubOffline as HubOffline,
    MissingDependencyError as MissingDependencyError,
    PickleOnlyError as PickleOnlyError,
    RepoNotFound as RepoNotFound,
    RevisionNotFound as RevisionNotFound,
    TokenizerMissingError as TokenizerMissingError,
    UnsupportedModelError as UnsupportedModelError,
)
from .export import (
    export_hf_dir as export_hf_dir,
)
from .families import (
    AlbertForMaskedLM as AlbertForMaskedLM,
    AlbertForQuestionAnswering as AlbertForQuestionAnswering,
    AlbertForSequenceClassification as AlbertForSequenceClassification,
    AlbertForTokenClassification as AlbertForTokenClassification,
    AlbertModel as AlbertModel,
    AutoModel as AutoModel,
    AutoModelForMaskedLM as AutoModelForMaskedLM,
    AutoModelForQuestionAnswering as AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification as AutoModelForSequenceClassification,
    AutoModelForTokenClassification as AutoModelForTokenClassification,
    BertForMaskedLM as BertForMaskedLM,
    BertForQuestionAnswering as BertForQuestionAnswering,
    BertForSequenceClassification as BertForSequenceClassification,
    BertForTokenClassification as BertForTokenClassification,
    BertModel as BertModel,
    DebertaV2ForMaskedLM as DebertaV2ForMaskedLM,
    DebertaV2ForQuestionAnswering as DebertaV2ForQuestionAnswering,
    DebertaV2ForSequenceClassification as DebertaV2ForSequenceClassification,
    DebertaV2ForTokenClassification as DebertaV2ForTokenClassification,
    DebertaV2Model as DebertaV2Model,
    DistilBertForMaskedLM as DistilBertForMaskedLM,
    DistilBertForQuestionAnswering as DistilBertForQuestionAnswering,
    DistilBertForSequenceClassification as DistilBertForSequenceClassification,
    DistilBertForTokenClassification as DistilBertForTokenClassification,
    DistilBertModel as DistilBertModel,
    ModernBertForMaskedLM as ModernBertForMaskedLM,
    ModernBertForQuestionAnswering as ModernBertForQuestionAnswering,
    ModernBertForSequenceClassification as ModernBertForSequenceClassification,
    ModernBertForTokenClassification as ModernBertForTokenClassification,
    ModernBertModel as ModernBertModel,
    RobertaForMaskedLM as RobertaForMaskedLM,
    RobertaForQuestionAnswering as RobertaForQuestionAnswering,
    RobertaForSequenceClassification as RobertaForSequenceClassification,
    RobertaForTokenClassification as RobertaForTokenClassification,
    RobertaModel as RobertaModel,
    XLMRobertaForMaskedLM as XLMRobertaForMaskedLM,
    XlmRobertaForMaskedLM as XlmRobertaForMaskedLM,
    XLMRobertaForQuestionAnswering as XLMRobertaForQuestionAnswering,
    XlmRobertaForQuestionAnswering as XlmRobertaForQuestionAnswering,
    XLMRobertaForSequenceClassification as XLMRobertaForSequenceClassification,
    XlmRobertaForSequenceClassification as XlmRobertaForSequenceClassification,
    XLMRobertaForTokenClassification as XLMRobertaForTokenClassification,
    XlmRobertaForTokenClassification as XlmRobertaForTokenClassification,
    XLMRobertaModel as XLMRobertaModel,
    XlmRobertaModel as XlmRobertaModel,
)
from .head_kind import (
    HeadKind as HeadKind,
)
from .keys import (
    HfPath as HfPath,
    bert_legacy_key_rename as bert_legacy_key_rename,
    hf_canonical_save_key as hf_canonical_save_key,
    hf_key_from_flodl_key as hf_key_from_flodl_key,
    keys_have_pooler as keys_have_pooler,
    prefix_params as prefix_params,
)
from .load_report import (
    LoadReport as LoadReport,
)
from .loading import (
    load_weights as load_weights,
)
from .lora import (
    add_lora as add_lora,
    merge_lora as merge_lora,
    unmerge_lora as unmerge_lora,
)
from .lora_files import (
    load_lora as load_lora,
    save_lora as save_lora,
)
from .lora_layers import (
    LoraEmbedding as LoraEmbedding,
    LoraLinear as LoraLinear,
    LoraSettings as LoraSettings,
)
from .losses import (
    masked_lm_loss as masked_lm_loss,
    question_answering_loss as question_answering_loss,
    sequence_classification_loss as sequence_classification_loss,
    token_classification_loss as token_classification_loss,
)
from .matrix import (
    verify_matrix as verify_matrix,
)
from .onnx_file import (
    OnnxFile as OnnxFile,
    export_onnx as export_onnx,
)
from .outline import (
    build_for_export as build_for_export,
)
from .outputs import (
    BaseModelOutputWithPooling as BaseModelOutputWithPooling,
    MaskedLMOutput as MaskedLMOutput,
    ModelOutput as ModelOutput,
    QuestionAnsweringModelOutput as QuestionAnsweringModelOutput,
    SequenceClassifierOutput as SequenceClassifierOutput,
    TokenClassifierOutput as TokenClassifierOutput,
)
from .predict.answer import (
    Answer as Answer,
)
from .predict.fill_mask import (
    MaskFill as MaskFill,
)
from .predict.sequence import (
    LabelScore as LabelScore,
)
from .predict.tokens import (
    Entity as Entity,
    TokenPrediction as TokenPrediction,
)
from .pretrained import (
    PretrainedModel as PretrainedModel,
)
from .safetensors_io import (
    LoadValidation as LoadValidation,
    expected_from_graph as expected_from_graph,
    load_safetensors_file_into_graph as load_safetensors_file_into_graph,
    load_safetensors_file_into_graph_with_rename as load_safetensors_file_into_graph_with_rename,
    load_safetensors_file_into_graph_with_rename_allow_unused as load_safetensors_file_into_graph_with_rename_allow_unused,
    load_safetensors_into_graph as load_safetensors_into_graph,
    load_safetensors_into_graph_with_rename as load_safetensors_into_graph_with_rename,
    load_safetensors_into_graph_with_rename_allow_unused as load_safetensors_into_graph_with_rename_allow_unused,
    save_safetensors_file_from_graph as save_safetensors_file_from_graph,
    save_safetensors_from_graph as save_safetensors_from_graph,
    validate_keys as validate_keys,
    weights_have_pooler as weights_have_pooler,
)
from .sentence_settings import (
    SentenceSettings as SentenceSettings,
)
from .sentence_transformer import (
    SentenceTransformer as SentenceTransformer,
)
from .surgery import (
    drop_layers as drop_layers,
    extract as extract,
    resize_vocab as resize_vocab,
)
from .tiny_model import (
    write_tiny_model as write_tiny_model,
)
from .tokenizer import (
    HfTokenizer as HfTokenizer,
)
from .training_data import (
    align_labels as align_labels,
    mask_tokens as mask_tokens,
)
from .verify import (
    verify_export as verify_export,
)
