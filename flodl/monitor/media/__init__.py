"""Media of a run: images, histograms, texts, tables and curves beside its metrics."""

from flodl.monitor.media.classification import (
    confusion_matrix as confusion_matrix,
    normalized as normalized,
    pr as pr,
    roc as roc,
)
from flodl.monitor.media.folder import MediaFolderSink as MediaFolderSink
from flodl.monitor.media.records import (
    ConfusionMatrix as ConfusionMatrix,
    Curve as Curve,
    Curves as Curves,
    Histogram as Histogram,
    Image as Image,
    MediaRecord as MediaRecord,
    Table as Table,
    Text as Text,
)
from flodl.monitor.media.store import MediaStore as MediaStore
