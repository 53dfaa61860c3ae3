"""Names of the classes and of the natural clients, where the files do not tell them."""

from __future__ import annotations

DIGITS = tuple("0123456789")
LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
BALANCED = (
    *DIGITS,
    *LETTERS,
    *"abdefghnqrt",
)  # EMNIST merges the letters that look alike in both cases
FASHION = (
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm"""
CIFAR100 = tuple(_CIFAR100.split())
_CIFAR100_COARSE = """
    aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
    household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
    large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees
    vehicles_1 vehicles_2"""
CIFAR100_COARSE = tuple(_CIFAR100_COARSE.split())
NEWS = ("World", "Sports", "Business", "Sci/Tech")
SENTIMENT = ("negative", "positive")
ACTIVITIES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
DIAGNOSIS = ("healthy", "heart disease")
SCORES = ("1", "2", "3", "4", "5")
TISSUES = ("ADI", "BACK", "DEB", "LYM", "MUC", "MUS", "NORM", "STR", "TUM")
TISSUE_NAMES = (
    *(
        "adipose",
        "background",
        "debris",
        "lymphocytes",
        "mucus",
        "smooth muscle",
        "normal colon mucosa",
    ),
    *("cancer-associated stroma", "colorectal adenocarcinoma epithelium"),
)
DOMAINS = ("books", "dvd", "electronics", "kitchen")
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
SUBJECTS = tuple(f"subject {i}" for i in range(1, 31))
