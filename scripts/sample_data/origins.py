"""What the sample corpus is made from. Licences are those that the packages name for each picture: docstrings of
`skimage.data`, and `sklearn/datasets/images/README.txt`; pictures without one are not taken."""

from __future__ import annotations

import platform

from sample_data.packages import Item, Package

SCIKIT_IMAGE = Package(
    "scikit-image",
    "0.26.0",
    (
        Item(
            "skimage/data/astronaut.png",
            "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5",
            "public domain, NASA",
            "a portrait of the astronaut Eileen Collins in an orange suit before a flag",
        ),
        Item(
            "skimage/data/camera.png",
            "b0793d2adda0fa6ae899c03989482bff9a42d3d5690fc7e3648f2795d730c23a",
            "CC0, Lav Varshney",
            "a photographer with a camera on a tripod on a lawn",
        ),
        Item(
            "skimage/data/chelsea.png",
            "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
            "CC0, Stefan van der Walt",
            "the face of a tabby cat named Chelsea",
        ),
        Item(
            "skimage/data/coffee.png",
            "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7",
            "CC0, Rachel Michetti",
            "a cup of espresso with a spoon on a wooden table",
        ),
        Item(
            "skimage/data/coins.png",
            "f8d773fc9cfa6f4d8e5942dc34d0a0788fcaed2a4fefbbed0aef5398d7ef4cba",
            "no known copyright restrictions, Brooklyn Museum",
            "rows of Greek coins from Pompeii",
        ),
        Item(
            "skimage/data/grass.png",
            "b6b6022426b38936c43a4ac09635cd78af074e90f42ffa8227ac8b7452d39f89",
            "CC0, linolafett",
            "blades of grass seen from above",
        ),
        Item(
            "skimage/data/gravel.png",
            "c48615b451bf1e606fbd72c0aa9f8cc0f068ab7111ef7d93bb9b0f2586440c12",
            "CC0, cc0textures.com",
            "a bed of gravel",
        ),
        Item(
            "skimage/data/hubble_deep_field.jpg",
            "3a19c5dd8a927a9334bb1229a6d63711b1c0c767fb27e2286e7c84a3e2c2f5f4",
            "public domain, NASA",
            "thousands of galaxies in the Hubble extreme deep field",
        ),
        Item(
            "skimage/data/ihc.png",
            "f8dd1aa387ddd1f49d8ad13b50921b237df8e9b262606d258770687b0ef93cef",
            "no known copyright restrictions, CMMI",
            "stained glands of a colon under a microscope",
        ),
        Item(
            "skimage/data/retina.jpg",
            "38a07f36f27f095e818aea7b96d34202c05176d30253c66733f2e00379e9e0e6",
            "CC0, Mikael Haggstrom",
            "the retina of an eye with its blood vessels",
        ),
        Item(
            "skimage/data/rocket.jpg",
            "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c",
            "public domain, SpaceX",
            "a rocket that leaves its launch pad at night",
        ),
    ),
)
SCIKIT_LEARN = Package(
    "scikit-learn",
    "1.9.1",
    (
        Item(
            "sklearn/datasets/images/china.jpg",
            "8378025ad2519d649d02e32bd98990db4ab572357d9f09841c2fbfbb4fefad29",
            "CC BY 2.0, https://www.flickr.com/photos/danielbuechele/6061409035",
            "the Summer Palace in Beijing with its roofs under a cloudy sky",
        ),
        Item(
            "sklearn/datasets/images/flower.jpg",
            "a77f6ec41e353afdf8bdff2ea981b2955535d8d83294f8cfa49cf4e423dd5638",
            "CC BY 2.0, https://www.flickr.com/photos/vultilion/6056698931",
            "a red dahlia among green leaves",
        ),
    ),
)
QWEN = Package(
    "dashscope",
    "2.0.2",
    (
        Item(
            "dashscope/resources/qwen.tiktoken",
            "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186",
            "Apache-2.0, Alibaba Cloud",
            "the vocabulary of Qwen2",
        ),
    ),
)
PHOTOGRAPHS = (SCIKIT_IMAGE, SCIKIT_LEARN)
TITLES = {item.name: item.title for package in PHOTOGRAPHS for item in package.items}


def licences(used: tuple[Package, ...]) -> str:
    """The text of the corpus's LICENSES.md."""
    lines = [
        "# Where this corpus comes from",
        "",
        "Photographs are cropped, scaled, mirrored and encoded anew.",
        "",
        "| package | file | licence and origin |",
        "| --- | --- | --- |",
    ]
    for package in used:
        lines += [f"| {package.name} {package.version} | {item.path} | {item.licence} |" for item in package.items]
    lines.append(
        f"| Python {platform.python_version()} | docstrings of the standard library (all texts) | "
        "PSF-2.0, Python Software Foundation |"
    )
    return "\n".join(lines) + "\n"
