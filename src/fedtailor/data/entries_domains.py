"""Sets of other kinds and of medical images and rated photographs: facts, files and official places."""

from __future__ import annotations

from fedtailor.data import labels
from fedtailor.data.entry import Download, Entry

SIGNALS = tuple(f"{s}_{axis}" for s in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
UCI = "https://archive.ics.uci.edu/static/public"
ZENODO = "https://zenodo.org/records"
NEWS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"


def _har(part: str) -> tuple[str, ...]:
    signals = (f"{part}/Inertial Signals/{s}_{part}.txt" for s in SIGNALS)
    return (f"{part}/y_{part}.txt", f"{part}/subject_{part}.txt", *signals)


AG_NEWS = Entry(
    "ag_news",
    "AG News, headlines and first sentences; at most 200 tokens",
    kind="text",
    shape=(200,),
    classes=4,
    samples=127_600,
    source="Zhang, Zhao, LeCun, NeurIPS 2015",
    home="http://groups.di.unipi.it/~gulli/AG_corpus_of_news_articles.html",
    licence="academic, non-commercial",
    files=("train.csv", "test.csv"),
    inside=("ag_news_csv",),
    downloads=(
        Download("train.csv", (f"{NEWS}/train.csv",), "md5:b1a00f826fdfbd249f79597b59e1dc12"),
        Download("test.csv", (f"{NEWS}/test.csv",), "md5:d52ea96a97a2d943681189a97654912d"),
    ),
    labels=labels.NEWS,
)
AMAZON = Entry(
    "amazon",
    "Amazon product reviews of four domains, counts of the 5000 most widespread words and pairs of words",
    kind="table",
    shape=(5000,),
    classes=2,
    samples=8_000,
    source="Blitzer, Dredze, Pereira, ACL 2007",
    home="https://www.cs.jhu.edu/~mdredze/datasets/sentiment",
    licence="none stated; academic use, cite the paper",
    files=tuple(f"{d}/{s}.review" for d in labels.DOMAINS for s in ("negative", "positive")),
    optional=tuple(f"{d}/unlabeled.review" for d in labels.DOMAINS),
    inside=("processed_acl",),
    downloads=(
        Download(
            "processed_acl.tar.gz",
            ("https://www.cs.jhu.edu/~mdredze/datasets/sentiment/processed_acl.tar.gz",),
        ),
    ),
    natural="4 domains",
    labels=labels.SENTIMENT,
    owners=labels.DOMAINS,
    variants=("labelled", "all"),
    apart=True,
    differs={"all": {"samples": 27_677}},
)
HAR = Entry(
    "har",
    "UCI HAR, nine channels of a smartphone's inertial sensors at 50 Hz",
    kind="signal",
    shape=(9, 128),
    classes=6,
    samples=10_299,
    source="Anguita, Ghio, Oneto, Parra, Reyes-Ortiz, ESANN 2013",
    home="https://archive.ics.uci.edu/dataset/240",
    licence="CC BY 4.0",
    files=_har("train") + _har("test"),
    inside=("UCI HAR Dataset",),
    downloads=(
        Download(
            "human+activity+recognition+using+smartphones.zip",
            (f"{UCI}/240/human+activity+recognition+using+smartphones.zip",),
        ),
    ),
    natural="30 subjects",
    labels=labels.ACTIVITIES,
    owners=labels.SUBJECTS,
    variants=("ordered", "legacy", "standard"),
)
HEART = Entry(
    "heart",
    "UCI heart disease, 13 features of patients of four hospitals with many gaps",
    kind="table",
    shape=(13,),
    classes=2,
    samples=920,
    source="Janosi, Steinbrunn, Pfisterer, Detrano, UCI 1988",
    home="https://archive.ics.uci.edu/dataset/45",
    licence="CC BY 4.0",
    files=tuple(f"processed.{h}.data" for h in labels.HOSPITALS),
    inside=("heart+disease", "heart_disease"),
    downloads=(Download("heart+disease.zip", (f"{UCI}/45/heart+disease.zip",)),),
    natural="4 hospitals",
    labels=labels.DIAGNOSIS,
    owners=labels.HOSPITALS,
)
FLICKR_AES = Entry(
    "flickr_aes",
    "FLICKR-AES, photographs rated 1 to 5 by single workers; REAL-CUR albums as an external set",
    kind="image",
    shape=(3, 224, 224),
    classes=5,
    samples=0,
    source="Ren, Shen, Lin, Mech, Foran, ICCV 2017",
    home="https://github.com/alanspike/personalizedImageAesthetics",
    licence="Creative Commons photographs; research",
    files=("40K", "FLICKR-AES_image_labeled_by_each_worker.csv"),
    optional=("REAL-CUR",),
    inside=("FLICKR-AES-001", "FLICKR-AES"),
    natural="workers with 60 to 290 images, at least 4 of every score",
    labels=labels.SCORES,
    variants=("224", "64"),
    apart=True,
    differs={"64": {"shape": (3, 64, 64)}},
)
HISTO = Entry(
    "histo",
    "NCT-CRC-HE-100K, tissue of nine types; CRC-VAL-HE-7K as an external set",
    kind="image",
    shape=(3, 64, 64),
    classes=9,
    samples=100_000,
    source="Kather, Halama, Marx, Zenodo 2018",
    home="https://zenodo.org/records/1214456",
    licence="CC BY 4.0",
    files=("NCT-CRC-HE-100K",),
    optional=("CRC-VAL-HE-7K",),
    downloads=(
        Download(
            "NCT-CRC-HE-100K.zip",
            (f"{ZENODO}/1214456/files/NCT-CRC-HE-100K.zip?download=1",),
            "md5:6fd702d11df6292bc054397ae038a464",
            ("NCT-CRC-HE-100K",),
        ),
        Download(
            "CRC-VAL-HE-7K.zip",
            (f"{ZENODO}/1214456/files/CRC-VAL-HE-7K.zip?download=1",),
            "md5:2fd1651b4f94ebd818ebf90ad2b6ce06",
            ("CRC-VAL-HE-7K",),
        ),
    ),
    labels=labels.TISSUE_NAMES,
    variants=("64", "32", "224"),
    apart=True,
    differs={"32": {"shape": (3, 32, 32)}, "224": {"shape": (3, 224, 224)}},
)
PATHMNIST = Entry(
    "pathmnist",
    "PathMNIST of MedMNIST v2, tissue of nine types; another centre is the test part",
    kind="image",
    shape=(3, 28, 28),
    classes=9,
    samples=107_180,
    source="Yang et al., Scientific Data 2023",
    home="https://medmnist.com",
    licence="CC BY 4.0",
    files=("pathmnist.npz",),
    downloads=(
        Download(
            "pathmnist.npz",
            (f"{ZENODO}/10519652/files/pathmnist.npz?download=1",),
            "md5:a8b06965200029087d5bd730944a56c1",
        ),
    ),
    labels=labels.TISSUE_NAMES,
)

DOMAINS = (AG_NEWS, AMAZON, HAR, HEART, FLICKR_AES, HISTO, PATHMNIST)
