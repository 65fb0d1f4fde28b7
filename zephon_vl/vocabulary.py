"""The vocabulary: a tokenizer on disk becomes the one file and the few ids that the workers need.

Runs once, in the training process. A `tokenizer.json` is used as it is, with the files beside it that say which tokens
are bos, eos and pad; transformers is imported only where there is none.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zephon_vl import __version__
from zephon_vl.contracts import Vocabulary
from zephon_vl.errors import RecipeError
from zephon_vl.files import write_atomically
from zephon_vl.presets import resolve_vision
from zephon_vl.sources.indexfile import cache_directory
from zephon_vl.vocabulary_cache import key_of, recall, remember

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

    from zephon_vl.recipe import Recipe

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TEMPLATE_FILE, _TEMPLATE_DIRECTORY = "chat_template.jinja", "additional_chat_templates"


@dataclass
class _Loaded:
    """A tokenizer and what the files beside it say."""

    tokenizer: Tokenizer
    file: Path | None
    """The serialisation as it stands; None where it must be written to the cache."""
    named: dict[str, str] = field(default_factory=dict)
    """Text of bos_token, eos_token and so on."""
    templates: dict[str, str] = field(default_factory=dict)


def load_vocabulary(recipe: Recipe) -> Vocabulary:
    """Read the recipe's tokenizer.

    Where the tokenizer on disk is in another form than `tokenizer.json`, or the files beside that add to it, the
    serialisation is written to the cache directory (`ZEPHON_VL_CACHE` or `~/.cache/zephon-vl`), named by its content.
    What was read is kept there as well, for the next loader on this machine.

    Raises:
        RecipeError: for a path that is no tokenizer, a chat template that cannot be read, a vision token that the
            tokenizer does not have.
    """
    path = Path(recipe.resolve(recipe.tokenizer.path))
    file = path / "tokenizer.json" if path.is_dir() else path
    key = key_of(_files(recipe, file), *_settings(recipe)) if file.is_file() else None
    vocabulary = recall(key, file) if key is not None else None
    if vocabulary is None:
        vocabulary = _read(recipe, path, file)
        if key is not None:
            remember(key, vocabulary, file)
    return vocabulary


def _files(recipe: Recipe, file: Path) -> list[Path]:
    """All files that decide what is read, there or not."""
    beside = ("special_tokens_map.json", "tokenizer_config.json", _TEMPLATE_FILE)
    files = [file, *(file.parent / name for name in beside)]
    files += sorted((file.parent / _TEMPLATE_DIRECTORY).glob("*.jinja"))
    if recipe.tokenizer.chat_template is not None:
        files.append(Path(recipe.resolve(recipe.tokenizer.chat_template)))
    return files


def _settings(recipe: Recipe) -> tuple[object, ...]:
    """What else decides it."""
    versions = (__version__, importlib.metadata.version("tokenizers"))
    return (*versions, recipe.tokenizer.chat_template is None, recipe.vision)


def _read(recipe: Recipe, path: Path, serialisation: Path) -> Vocabulary:
    loaded = _load(path, serialisation, recipe.tokenizer.path)
    tokenizer = loaded.tokenizer
    file = loaded.file or _write_to_cache(tokenizer.to_str())
    template = _chat_template(recipe, loaded.templates)

    bos, eos = (_id(tokenizer, loaded.named.get(name)) for name in ("bos_token", "eos_token"))
    pad = next((i for i in (_id(tokenizer, loaded.named.get("pad_token")), eos) if i >= 0), 0)
    vision = _vision_ids(recipe, tokenizer)
    ids = tokenizer.get_vocab(with_added_tokens=True)
    return Vocabulary(
        tokenizer_json=str(file),
        fingerprint=_fingerprint(file, template, [bos, eos, pad, *vision.values()]),
        size=max(ids.values(), default=-1) + 1,
        bos=bos,
        eos=eos,
        pad=pad,
        chat_template=template,
        special_texts={token.content: i for i, token in sorted(tokenizer.get_added_tokens_decoder().items())},
        **vision,
    )


# --- reading -------------------------------------------------------------------------------------------------------


def _load(path: Path, file: Path, given: str) -> _Loaded:
    if "://" in str(path) or "://" in given:
        raise RecipeError(f"tokenizer.path is {given!r}, but must be a local directory or file; download it first")
    if not path.exists():
        raise RecipeError(
            f"tokenizer.path is {given!r}, but {path} does not exist; give a directory or a tokenizer.json"
        )
    if file.is_file():
        return _load_json(file, given)
    return _load_with_transformers(path, given)


def _load_json(file: Path, given: str) -> _Loaded:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except BaseException as error:
        if type(error) is not Exception:  # the class that Rust errors arrive as
            raise
        where = f"tokenizer.path is {given!r}, but {file}"
        table = _read_json(file, where)
        if isinstance(table, dict) and "model" in table:
            raise RecipeError(f"{where} cannot be loaded by tokenizers: {error}") from error
        raise RecipeError(
            f"{where} is no serialisation of the tokenizers library; give a tokenizer.json or the directory that "
            "transformers saved"
        ) from error
    # Another name means a file of its own: what lies beside it may belong to another tokenizer.
    if file.name != "tokenizer.json":
        return _Loaded(tokenizer, file)
    config = _read_config(file.parent, given)
    loaded = _Loaded(tokenizer, file, _named_tokens(config), _templates(file.parent, config))
    if _add_missing(tokenizer, config, loaded.named):
        loaded.file = None
    return loaded


def _load_with_transformers(path: Path, given: str) -> _Loaded:
    if not path.is_dir():
        raise RecipeError(f"tokenizer.path is {given!r}, but {path} is neither a directory nor a file")
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError) as error:
        names = ", ".join(sorted(os.listdir(path))[:10]) or "nothing"
        raise RecipeError(
            f"tokenizer.path is {given!r}, but {path} has no tokenizer.json and transformers cannot load it: {error}. "
            f"The directory has {names}"
        ) from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise RecipeError(
            f"tokenizer.path is {given!r}, but {type(tokenizer).__name__} has no fast form (tokenizer.json); save the "
            "tokenizer with a fast class of transformers first"
        )
    templates = tokenizer.chat_template or {}
    if isinstance(templates, str):
        templates = {"default": templates}
    named = {name: str(text) for name in _NAMED if (text := getattr(tokenizer, name, None)) is not None}
    return _Loaded(backend, None, named, templates)


def _read_config(directory: Path, given: str) -> dict[str, Any]:
    """tokenizer_config.json over special_tokens_map.json, both optional."""
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (directory / name).is_file():
            table = _read_json(directory / name, f"tokenizer.path is {given!r}, but {directory / name}")
            if not isinstance(table, dict):
                raise RecipeError(f"tokenizer.path is {given!r}, but {directory / name} is not a JSON object")
            config.update({key: value for key, value in table.items() if value is not None or key not in config})
    return config


def _read_json(file: Path, where: str) -> Any:
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        raise RecipeError(f"{where} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RecipeError(f"{where} is not JSON: {error}") from error


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    texts = {name: _text(config.get(name)) for name in _NAMED}
    return {name: text for name, text in texts.items() if text is not None}


def _text(value: Any) -> str | None:
    """A token in a configuration: its text, or an object with `content`."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) and value else None


def _add_missing(tokenizer: Tokenizer, config: Mapping[str, Any], named: Mapping[str, str]) -> bool:
    """Add the tokens that only the configuration has, as transformers does; True if there were any."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing = [token for token in _configured_tokens(config, named) if token.content not in known]
    tokenizer.add_tokens(missing)
    return bool(missing)


def _configured_tokens(config: Mapping[str, Any], named: Mapping[str, str]) -> list[AddedToken]:
    """Every added token that the configuration lists or names, in the order in which transformers adds them."""
    from tokenizers import AddedToken

    flags = ("lstrip", "rstrip", "single_word", "normalized", "special")
    tokens: dict[str, AddedToken] = {}
    listed = config.get("added_tokens_decoder")
    for _, entry in sorted(listed.items(), key=lambda item: int(item[0])) if isinstance(listed, dict) else ():
        if (text := _text(entry)) is not None:
            tokens[text] = AddedToken(text, **{flag: bool(entry[flag]) for flag in flags if flag in entry})
    extra: list[Any] = []
    for name in ("additional_special_tokens", "extra_special_tokens"):
        value = config.get(name) or []
        extra += value.values() if isinstance(value, dict) else value
    for text in [*named.values(), *(text for entry in extra if (text := _text(entry)) is not None)]:
        tokens.setdefault(text, AddedToken(text, special=True))
    return list(tokens.values())


def adds_bos(tokenizer: Tokenizer, bos: int) -> bool:
    """Whether the tokenizer itself puts `bos` before a plain text."""
    return bos >= 0 and tokenizer.encode("a", add_special_tokens=True).ids[:1] == [bos]


# --- chat templates ------------------------------------------------------------------------------------------------


def _templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name, from files before the configuration, as transformers reads them."""
    files = {"default": directory / _TEMPLATE_FILE} if (directory / _TEMPLATE_FILE).is_file() else {}
    files |= {file.stem: file for file in sorted((directory / _TEMPLATE_DIRECTORY).glob("*.jinja"))}
    if files:
        return {name: _read_text(file, "tokenizer.path") for name, file in files.items()}
    value = config.get("chat_template")
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        return {entry["name"]: entry["template"] for entry in value}
    return {}


def _chat_template(recipe: Recipe, templates: Mapping[str, str]) -> str | None:
    """The recipe's own, else the tokenizer's only one or the one named default."""
    if recipe.tokenizer.chat_template is not None:
        return _read_text(Path(recipe.resolve(recipe.tokenizer.chat_template)), "tokenizer.chat_template")
    if "default" in templates:
        return templates["default"]
    return next(iter(templates.values())) if len(templates) == 1 else None


def _read_text(file: Path, where: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{where}: cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{where}: {file} is not UTF-8: {error}") from error


# --- ids -----------------------------------------------------------------------------------------------------------


def _vision_ids(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, int]:
    if recipe.vision is None:
        return {}
    rules = resolve_vision(recipe.vision)
    ids = {
        "image": _id(tokenizer, rules.image_token),
        "video": _id(tokenizer, rules.video_token),
        "vision_start": _id(tokenizer, rules.vision_start_token),
        "vision_end": _id(tokenizer, rules.vision_end_token),
    }
    if ids["image"] < 0:
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        like = [text for text in added if "image" in text.lower() or "media" in text.lower()]
        raise RecipeError(
            f"tokenizer.path is {recipe.tokenizer.path!r}, but this tokenizer has no token {rules.image_token!r}, the "
            f"image token of preset {recipe.vision.preset!r}; set vision.image_token to the one it has"
            + (f" (perhaps {', '.join(map(repr, like[:4]))})" if like else "")
            + " or give the model's own tokenizer"
        )
    return ids


def _id(tokenizer: Tokenizer, text: str | None) -> int:
    found = None if text is None else tokenizer.token_to_id(text)
    return -1 if found is None else found


def _fingerprint(file: Path, template: str | None, ids: list[int]) -> str:
    digest = hashlib.sha256(file.read_bytes())
    digest.update(b"\0" + repr((template, ids)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


# --- cache ---------------------------------------------------------------------------------------------------------


def _write_to_cache(serialisation: str) -> Path:
    """Write atomically; the name is the content's hash, so a file that is there is right."""
    data = serialisation.encode()
    directory = Path(cache_directory()) / "tokenizers"
    file = directory / f"{hashlib.sha256(data).hexdigest()}.json"
    if file.is_file():
        return file
    try:
        write_atomically(file, data)
    except OSError as error:
        raise RecipeError(
            f"cannot write the tokenizer to the cache directory {directory}: {error.strerror}; set ZEPHON_VL_CACHE to "
            "a directory that can be written"
        ) from error
    return file
