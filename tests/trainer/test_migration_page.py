"""docs/seeds.md, the dictionary for those who come from other systems, names keys, groups and commands that exist."""

import dataclasses
import importlib.util
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines import console
from pipelines.config import check, to_plain
from pipelines.errors import ConfigError
from pipelines.project.profiles import PLAIN, section_types
from trainer.config import LossScaleConfig, ModelConfig, ParallelConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "seeds.md").read_text()
HEADER = ["there", "default", "here", "note"]
TYPES = section_types()


def rows() -> Iterator[list[str]]:
    """The cells of all tables."""
    for line in PAGE.splitlines():
        if line.startswith("|") and not line.startswith("| ---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def ours() -> Iterator[str]:
    """All code in the column that is about us, and every key of ours elsewhere; `parallel.tensor` is Titans'."""
    for cells in rows():
        yield from re.findall(r"`([^`]+)`", cells[2])
    notes = [cells[3] for cells in rows()] + [line for line in PAGE.splitlines() if not line.startswith("|")]
    for code in re.findall(r"`([^`]+)`", "\n".join(notes)):
        if code.partition(".")[0] in TYPES and "." in code:
            yield code


def require(code: str) -> None:
    """Fail, or raise ConfigError, unless it is a key with a value it can have, a group's choice, or a command."""
    if code.startswith("python -m "):
        assert importlib.util.find_spec(code.removeprefix("python -m ")), code
        return
    if code.startswith("millrace "):
        assert code.removeprefix("millrace ") in console.modules(), code
        return
    key, _, value = code.partition("=")
    section, _, field = key.partition(".")
    if not field and not value:
        assert section in PLAIN, code
    elif not field:
        assert (ROOT / "configs" / section / f"{value}.yaml").exists(), code
    else:
        require_key(TYPES[section], section, field, value)


def require_key(cls: Any, section: str, key: str, value: str) -> None:
    """The same for a key, with a value or without."""
    name, _, rest = key.partition(".")
    hints = typing.get_type_hints(cls)
    assert name in hints, f"{section}.{key}"
    if rest:
        require_key(hints[name], f"{section}.{name}", rest, value)
    elif value:
        check(cls, {**to_plain(cls()), name: yaml.safe_load(value)}, section, "docs/seeds.md")


def test_every_key_group_and_command_of_ours_exists() -> None:
    named = set(ours())
    assert len(named) > 120
    for code in sorted(named):
        require(code)


@pytest.mark.parametrize(
    "wrong",
    [
        "parallel.zeros",
        "parallel.zero=4",
        "parallel.schedule=zigzag",
        "pretrain.loss_scale.inital",
        "parallel=zero9",
        "python -m benchmarks.gpus",
        "millrace pretraining",
        "warmup_steps",
        "pretrain.steps=-1",
    ],
)
def test_a_key_that_does_not_exist_would_be_found(wrong: str) -> None:
    with pytest.raises((AssertionError, ConfigError)):
        require(wrong)


def test_the_tables_have_one_form_and_a_reason_for_each_dash() -> None:
    for cells in rows():
        assert len(cells) == 4, cells
        if cells[0] == "there":
            assert cells == HEADER
            continue
        assert cells[0], cells
        assert ("`" in cells[2]) != (cells[2] == "—"), cells
        assert cells[2] != "—" or cells[3], f"no reason: {cells}"


def test_all_of_our_layouts_models_and_loss_scales_keys_have_a_counterpart() -> None:
    named = {code.partition("=")[0] for code in ours()}
    # Devices are chosen by name nowhere else; the rest of what is ours alone is none of the page's business.
    expected = {f"parallel.{field.name}" for field in dataclasses.fields(ParallelConfig)} - {"parallel.device"}
    expected |= {f"model.{field.name}" for field in dataclasses.fields(ModelConfig)}
    expected |= {f"pretrain.loss_scale.{field.name}" for field in dataclasses.fields(LossScaleConfig)}
    assert expected <= named


THEIRS = """
tp_size pp_size sp_size enable_sequence_parallelism sequence_parallelism_mode precision zero_stage
enable_all_optimization enable_fused_normalization enable_flash_attention enable_jit_fused parallel_output
num_microbatches microbatch_size initial_scale min_scale growth_factor backoff_factor growth_interval hysteresis
max_scale max_norm broadcast_buffers ddp_bucket_cap_mb find_unused_parameters check_reduction gradient_as_bucket_view
static_graph zero_bucket_size_in_m cpu_offload communication_dtype overlap_communication overlap_allgather custom_policy
pp_style num_model_chunks scheduler_nodes num_layers_per_stage gradient_checkpoint_config enable_metadata_cache
overlap_p2p make_vocab_size_divisible_by dp_outside fp8_communication use_fp8 inner_ring_size
chunk_config_dict chunk_init_device placement_policy enable_gradient_accumulation max_prefetch shard_param_frac
offload_optim_frac offload_param_frac warmup_non_model_data_ratio steady_cuda_cap_ratio master_weights pin_memory
enable_async_reduce force_outputs_fp32 strict_ddp_mode search_range_m hidden_dim min_chunk_size_m memstats
gpu_margin_mem_ratio norm_type extra_dp_size stage reduce_bucket_size_in_m cast_inputs no_sync
betas eps weight_decay bias_correction adamw_mode nvme_offload_fraction nvme_offload_dir
--task --plugin --target_f1 --model_type --use_lazy_init --use_fp8_comm max_seq_length train_batch_size eval_batch_size
-c -p -b -s -i -g -l -w -m --tp --extra_dp --pp --sp --sp_mode --mbs --zero --num_model_chunks
num_layers hidden_size num_attention_heads vocab_size embed_drop_rate act_func mlp_ratio attn_drop_rate drop_rate
apply_post_layer_norm embed_split_hidden num_chunks partition_uniform partition_balanced customized_partition
PipelinableContext PipelineSharedModuleWrapper PipelineSharedModuleGradientHandler TENSOR_SHAPE NUM_MICRO_BATCHES
clip_grad_norm gradient_accumulation gradient_handler torch_ddp cudnn_benchmark cudnn_deterministic
reduce_scatter_bucket_size_mb fp32_reduce_scatter tensor_placement_policy gradient_predivide_factor reuse_fp16_shard
LinearWarmupLR CosineAnnealingLR FlatAnnealingLR MultiStepLR OneCycleLR PolynomialLR LambdaLR WebtextDataset
launch_from_torch launch_from_slurm launch_from_openmpi --distplan --placement --shardinit --train_step
LossHook AccuracyHook LRSchedulerHook LogMetricByStepHook LogMetricByEpochHook ThroughputHook TensorboardHook
LogMemoryByEpochHook LogTimingByEpochHook SaveCheckpointHook
--output --n_procs --timeout --max_urls --scraper --output_dir --save_uncompressed --compress --compress_fmt
--chunk_size --scraper_memoize --sqlite_meta --show_warnings --json_path --output_file --input-file --output-file
--id-prefix --input-files --tasks --output-path --log-interval remove_512 remove_256_javascript remove_512_non_english
ftfy_fix_text general_cleaning --inputs --seed --jaccard --num-seeds --num-bands --heuristic-iter --jaccard-parallel
--save-fingerprints --load-fingerprints --dedup-dataset --lambada-path --max-ngram-size --min-ngram-size
--key-threshold --remove-char-each-side --filter-text-char-len --splits-count --save-dictionary --load-dictionary
--num-threads
blacklist_urls.py download.py merge_jsons.py add_id.py cleanup_dataset.py cleanup_fix_dataset.py find_duplicates.py
group_duplicate_url.py remove_group_duplicates.py filter_ngrams.py shuf
"""
"""Arguments of the plugins, scripts, configs, hooks and tools, in the order of their sources."""


def test_every_option_of_theirs_has_a_row() -> None:
    column = " ".join(cells[0] for cells in rows())
    missing = [option for option in THEIRS.split() if not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", column)]
    assert not missing
