from .auto import (
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
    XLMRobertaForQuestionAnswering as XLMRobertaForQuestionAnswering,
    XLMRobertaForSequenceClassification as XLMRobertaForSequenceClassification,
    XLMRobertaForTokenClassification as XLMRobertaForTokenClassification,
    XLMRobertaModel as XLMRobertaModel,
)
from .batch_encoding import (
    BatchEncoding as BatchEncoding,
)
from .collators import (
    DataCollatorForLanguageModeling as DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification as DataCollatorForTokenClassification,
    DataCollatorWithPadding as DataCollatorWithPadding,
    default_data_collator as default_data_collator,
)
from .conversion import (
    convert as convert,
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
    AlbertConfig as AlbertConfig,
    AutoConfig as AutoConfig,
    BertConfig as BertConfig,
    DebertaV2Config as DebertaV2Config,
    DistilBertConfig as DistilBertConfig,
    EncoderConfig as EncoderConfig,
    ModernBertConfig as ModernBertConfig,
    RobertaConfig as RobertaConfig,
    XLMRobertaConfig as XLMRobertaConfig,
)
from .head_kind import (
    HeadKind as HeadKind,
)
from .layers.activations import (
    activation as activation,
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
    AlbertTokenizerFast as AlbertTokenizerFast,
    AutoTokenizer as AutoTokenizer,
    BertTokenizerFast as BertTokenizerFast,
    DebertaV2TokenizerFast as DebertaV2TokenizerFast,
    DistilBertTokenizerFast as DistilBertTokenizerFast,
    HfTokenizer as HfTokenizer,
    PreTrainedTokenizerFast as PreTrainedTokenizerFast,
    RobertaTokenizerFast as RobertaTokenizerFast,
    XLMRobertaTokenizerFast as XLMRobertaTokenizerFast,
)
from .training_data import (
    align_labels as align_labels,
    mask_tokens as mask_tokens,
)
from .verify import (
    verify_export as verify_export,
)
from .weights.fill import (
    LoadReport as LoadReport,
    fill as fill,
    load_safetensors_file_into_graph as load_safetensors_file_into_graph,
)
from .weights.writing import (
    save_safetensors_file_from_graph as save_safetensors_file_from_graph,
)
