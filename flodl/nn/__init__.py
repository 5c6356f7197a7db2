"""Layers, losses, optimizers and schedules: missing in torch, or with simpler names and checks."""

from flodl.nn.amp import (
    AutocastGuard as AutocastGuard,
    GradScaler as GradScaler,
    autocast as autocast,
    cast_parameters as cast_parameters,
    is_autocast_enabled as is_autocast_enabled,
)
from flodl.nn.clip import clip_grad_norm as clip_grad_norm, clip_grad_value as clip_grad_value
from flodl.nn.cuda_graph import (
    CaptureMode as CaptureMode,
    CudaGraph as CudaGraph,
    cuda_graph_capture as cuda_graph_capture,
    cuda_graph_pool_handle as cuda_graph_pool_handle,
)
from flodl.nn.init import (
    kaiming_normal as kaiming_normal,
    kaiming_uniform as kaiming_uniform,
    normal as normal,
    orthogonal as orthogonal,
    trunc_normal as trunc_normal,
    uniform as uniform,
    uniform_bias as uniform_bias,
    xavier_normal as xavier_normal,
    xavier_uniform as xavier_uniform,
)
from flodl.nn.layers import (
    GaussianBlur as GaussianBlur,
    SelfAttention as SelfAttention,
    gaussian_blur_2d as gaussian_blur_2d,
)
from flodl.nn.losses import (
    bce_loss as bce_loss,
    bce_with_logits_loss as bce_with_logits_loss,
    cosine_embedding_loss as cosine_embedding_loss,
    cross_entropy_loss as cross_entropy_loss,
    ctc_loss as ctc_loss,
    focal_loss as focal_loss,
    hinge_embedding_loss as hinge_embedding_loss,
    kl_div_loss as kl_div_loss,
    l1_loss as l1_loss,
    margin_ranking_loss as margin_ranking_loss,
    mse_loss as mse_loss,
    nll_loss as nll_loss,
    poisson_nll_loss as poisson_nll_loss,
    smooth_l1_loss as smooth_l1_loss,
    triplet_margin_loss as triplet_margin_loss,
)
from flodl.nn.optim import (
    SGD as SGD,
    Adagrad as Adagrad,
    Adam as Adam,
    AdamW as AdamW,
    NAdam as NAdam,
    RAdam as RAdam,
    RMSprop as RMSprop,
    scale_lr as scale_lr,
    set_group_lr as set_group_lr,
    set_lr as set_lr,
)
from flodl.nn.schedule import (
    CosineScheduler as CosineScheduler,
    CyclicLR as CyclicLR,
    ExponentialLR as ExponentialLR,
    MultiStepLR as MultiStepLR,
    OneCycleLR as OneCycleLR,
    PlateauScheduler as PlateauScheduler,
    Scheduler as Scheduler,
    StepDecay as StepDecay,
    WarmupScheduler as WarmupScheduler,
    as_torch_scheduler as as_torch_scheduler,
)
