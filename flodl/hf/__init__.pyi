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
    align_labels as align_labels,
    default_data_collator as default_data_collator,
)
from .conversion import (
    convert as convert,
)
from .encoder_model import (
    backbone_outputs as backbone_outputs,
    set_unpad as set_unpad,
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
from .lora import (
    add_lora as add_lora,
    merge_lora as merge_lora,
    unmerge_lora as unmerge_lora,
)
from .lora_files import (
    load_lora as load_lora,
    save_lora as save_lora,
)
from .model_call import (
    BaseModelOutputWithPooling as BaseModelOutputWithPooling,
    MaskedLMOutput as MaskedLMOutput,
    ModelOutput as ModelOutput,
    QuestionAnsweringModelOutput as QuestionAnsweringModelOutput,
    SequenceClassifierOutput as SequenceClassifierOutput,
    TokenClassifierOutput as TokenClassifierOutput,
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
)
from .tiny_model import (
    write_tiny_model as write_tiny_model,
)
from .tokenizer import (
    AlbertTokenizer as AlbertTokenizer,
    AlbertTokenizerFast as AlbertTokenizerFast,
    AutoTokenizer as AutoTokenizer,
    BertTokenizer as BertTokenizer,
    BertTokenizerFast as BertTokenizerFast,
    DebertaV2Tokenizer as DebertaV2Tokenizer,
    DebertaV2TokenizerFast as DebertaV2TokenizerFast,
    DistilBertTokenizer as DistilBertTokenizer,
    DistilBertTokenizerFast as DistilBertTokenizerFast,
    PreTrainedTokenizerFast as PreTrainedTokenizerFast,
    RobertaTokenizer as RobertaTokenizer,
    RobertaTokenizerFast as RobertaTokenizerFast,
    XLMRobertaTokenizer as XLMRobertaTokenizer,
    XLMRobertaTokenizerFast as XLMRobertaTokenizerFast,
)
from .verify import (
    verify_export as verify_export,
)
