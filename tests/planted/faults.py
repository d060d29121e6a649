"""Faults to plant, of the kinds that real ones were: a mask off by one, a weight that is not normalised, a key used
twice, a wrong axis, a swapped label map, a resume that skips a batch, a message without the field."""

from typing import NamedTuple


class Fault(NamedTuple):
    """A change of one place in a file.
    Attributes:
      name: what is wrong then.
      file: a path in the checkout.
      before: text that the file has once.
      after: what replaces it.
      tests: folders and files of tests that cover the file; by default the folder of tests of its package.
    """
    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...] = ()
    @property
    def covering_tests(self) -> tuple[str, ...]:
        """`tests`, or the folder of the file's package."""
        return self.tests or (f"tests/{self.file.split('/')[1]}",)


FAULTS = (
    # layers
    Fault("the causal mask hides a position from itself", "lmrep/layers/attention.py",
          "positions[:, None] >= positions[None, :]", "positions[:, None] > positions[None, :]",
          ("tests/layers/test_attention.py", "tests/models/test_transformer.py")),
    Fault("dropout does not rescale what it keeps", "lmrep/layers/dropout.py",
          "x.astype(jnp.float32) / (1 - rate), 0)", "x.astype(jnp.float32), 0)",
          ("tests/layers/test_dropout.py",)),
    Fault("the distances of chosen queries are off by one", "lmrep/layers/relative_attention.py",
          "start = None if mask.at is None else mask.length - 1 - mask.at",
          "start = None if mask.at is None else mask.length - mask.at",
          ("tests/models/test_transformer_xl.py", "tests/models/test_transformer_xl_properties.py",
           "tests/models/test_properties.py")),
    Fault("a CRF scores transitions from the later tag to the earlier", "lmrep/layers/crf.py",
          'scores["between"][before, tags]', 'scores["between"][tags, before]',
          ("tests/layers/test_crf.py",)),
    Fault("an LSTM keeps its cell where a sequence starts", "lmrep/layers/projected_lstm.py",
          "before, cell_before = (jnp.where(starts[:, None], 0, x) for x in (hidden, cell))",
          "before, cell_before = jnp.where(starts[:, None], 0, hidden), cell",
          ("tests/layers/test_recurrent.py", "tests/models/test_bilstm.py")),
    Fault("half of the gradient of z-loss is missing", "lmrep/layers/lm_head.py",
          "1 + 2 * z_loss * log_z", "1 + z_loss * log_z",
          ("tests/layers/test_lm_head.py", "tests/objectives/test_outputs.py")),
    Fault("devices drop the same attention weights", "lmrep/layers/chunked_attention.py",
          "(b, h, first + i * t, j * s)", "(0, h, first + i * t, j * s)",
          ("tests/layers/test_chunked_attention.py", "tests/layers/test_dropout.py")),
    # models
    Fault("a beam continues with the cache of another example", "lmrep/models/decoding.py",
          "source = (jnp.arange(b)[:, None] * k + beam).reshape(-1)",
          "source = (jnp.arange(b)[:, None] + beam * b).reshape(-1)",
          ("tests/models/test_decoding.py", "tests/models/test_encoder_decoder.py")),
    Fault("a memory is kept where a new text begins", "lmrep/models/transformer_xl.py",
          "before *= (last == known[:, :1]) | (count == 0)[:, None]", "before *= (last > 0) | (count == 0)[:, None]",
          ("tests/models/test_transformer_xl.py", "tests/models/test_transformer_xl_properties.py",
           "tests/models/test_properties.py")),
    Fault("a decoder attends to the padding of its source", "lmrep/models/encoder_decoder.py",
          "text_mask(inputs.source).segment_ids[:, None, :])",
          "jnp.maximum(text_mask(inputs.source).segment_ids, 1)[:, None, :])",
          ("tests/models/test_encoder_decoder.py", "tests/models/test_encoder_decoder_equations.py",
           "tests/models/test_properties.py")),
    # objectives
    Fault("random tokens are as frequent as unchanged ones", "lmrep/objectives/masking.py",
          "jnp.where(action < c.mask + c.random, replacements, targets)",
          "jnp.where(action < c.mask + c.keep, replacements, targets)",
          ("tests/objectives/test_masked.py", "tests/objectives/test_properties.py")),
    Fault("the number of masked tokens is a fraction of those that are not special", "lmrep/objectives/masking.py",
          "num_predictions(fraction, real.sum(), tokens.shape[0], c)",
          "num_predictions(fraction, maskable.sum(), tokens.shape[0], c)",
          ("tests/objectives/test_masked.py",)),
    Fault("the generator samples with the key that chose the masks", "lmrep/objectives/replaced_token.py",
          "key, seed_key = jax.random.split(key)", "seed_key = key",
          ("tests/objectives/test_replaced_token.py", "tests/objectives/test_properties.py")),
    Fault("the first part of an example may see given tokens of the second", "lmrep/objectives/factorization.py",
          "floor += most + 1", "floor += most",
          ("tests/objectives/test_factorization.py", "tests/objectives/test_permutation.py")),
    Fault("the divergence from a teacher is the reverse one", "lmrep/objectives/teaching.py",
          "(jnp.exp(p) * (p - q)).sum(-1)", "(jnp.exp(q) * (q - p)).sum(-1)",
          ("tests/objectives/test_distillation.py",)),
    Fault("weights add to 1 over an example and not over the batch", "lmrep/objectives/outputs.py",
          "mask / jnp.maximum(mask.sum(), 1.0)", "mask / jnp.maximum(mask.sum(-1, keepdims=True), 1.0)",
          ("tests/objectives/test_outputs.py", "tests/objectives/test_properties.py")),
    # data
    Fault("all epochs have the same order", "lmrep/data/order.py",
          "[seed, int(epoch)])", "[seed, 0])",
          ("tests/data/test_loader.py", "tests/data/test_format_properties.py")),
    Fault("a resumed run restarts carried states", "lmrep/data/loader.py",
          "numbers_of(step - 1)[indices] if step else", "numbers_of(step - 1)[indices] if step > first else",
          ("tests/data/test_loader.py", "tests/data/test_format_properties.py")),
    Fault("sentences that a random pair did not use are lost", "lmrep/data/formats/segment_pair.py",
          "cursor = middle", "cursor = end",
          ("tests/data/test_segment_pair.py",)),
    Fault("the cache of records serves the first one after its slot is reused", "lmrep/data/store/token_store.py",
          "self._slot[evicted[evicted >= 0]] = -1", "self._slot[evicted[evicted > 0]] = -1",
          ("tests/data/test_store.py",)),
    Fault("the document at a boundary is in the earlier split", "lmrep/data/corpora/splits.py",
          'np.searchsorted(ends, indices, side="right")', 'np.searchsorted(ends, indices, side="left")',
          ("tests/data/test_corpora.py",)),
    # core
    Fault("the content of sealed files is not compared", "lmrep/core/files.py",
          "if name not in trusted and _sha256(directory / name) != sha256:",
          "if name in trusted and _sha256(directory / name) != sha256:",
          ("tests/core", "tests/storage/test_checkpoints.py")),
    Fault("all layers of a stack start from the same values", "lmrep/core/params.py",
          "(jax.random.split(key, layers))", "(jnp.stack([key] * layers))",
          ("tests/core/test_params.py",)),
    Fault("the MD5 of a download is not compared", "lmrep/core/remote_cache.py",
          'if kind == "md5Hash":', 'if kind == "md5":',
          ("tests/core/test_remote_cache.py", "tests/core/test_remote.py")),
    # config
    Fault("a message has the field without its path", "lmrep/config/record.py",
          'convert(types_[key], value, f"{prefix}{key}")', "convert(types_[key], value, key)"),
    Fault("an upper bound belongs to the values that it excludes", "lmrep/config/record.py",
          '"below": operator.lt}', '"below": operator.le}'),
    # distributed
    Fault("processes of the second host choose GPUs by their rank in the run", "lmrep/distributed/process_group.py",
          "list(range(process.local_index * size, (process.local_index + 1) * size))",
          "list(range(process.index * size, (process.index + 1) * size))",
          ("tests/distributed/test_process_group.py",)),
    Fault("a process that stands still counts as one in progress", "lmrep/distributed/watchdog.py",
          "now if progressed else previous.progressed_at", "now"),
    # doctor
    Fault("the checkpoint that is being saved takes no space", "lmrep/doctor/machine.py",
          "number = config.keep + config.keep_best + 1", "number = config.keep + config.keep_best"),
    Fault("damaged checkpoints are no warning", "lmrep/doctor/run.py",
          "WARNING if damaged else OK)", "OK)"),
    # experiment
    Fault("a run does not record which frozen parts it was trained with", "lmrep/experiment/checks.py",
          '**({"frozen": dict(frozen)} if frozen else {}),', "",
          ("tests/experiment/test_frozen.py",)),
    Fault("the general settings of a recipe hide those of a data set", "lmrep/experiment/fine_tuning.py",
          '{**rows[""], **rows.get(known, {})}', '{**rows.get(known, {}), **rows[""]}',
          ("tests/experiment/test_fine_tuning.py", "tests/experiments/test_pages.py")),
    # inference
    Fault("windows of a perplexity predict the tokens of their overlap twice", "lmrep/inference/perplexity.py",
          "first, start = end, start + stride", "first, start = start + stride, start + stride",
          ("tests/inference/test_generate.py", "tests/inference/test_evaluate.py")),
    Fault("the accuracy of a phenomenon is a mean over pairs", "lmrep/inference/pairs.py",
          "accuracies.mean(0).tolist()", "np.average(accuracies, axis=0, weights=counts).tolist()",
          ("tests/inference/test_pairs.py",)),
    Fault("all prompts are continued with the same draws", "lmrep/inference/generate.py",
          "jax.random.fold_in(jax.random.key(options.seed), number)", "jax.random.key(options.seed)",
          ("tests/inference/test_generate.py", "tests/inference/test_prompts.py")),
    # interop
    Fault("the bias of forget gates lacks what TensorFlow adds", "lmrep/interop/bilm.py",
          "f + FORGET_BIAS if tensor.ndim == 1 else f, g, o", "f, g, o",
          ("tests/interop/test_bilm.py", "tests/interop/test_bilm_conversion.py")),
    Fault("vocabularies of one size count as equal", "lmrep/interop/init_from.py",
          "list(tokens) != list(source.tokens)", "len(tokens) != len(source.tokens)",
          ("tests/interop/test_init_from.py",)),
    Fault("a head is taken for the same labels in another order", "lmrep/interop/init_from.py",
          'old_labels, labels = (tuple(fields.get("labels", ()))',
          'old_labels, labels = (set(fields.get("labels", ()))',
          ("tests/interop/test_init_from.py", "tests/tasks/test_classification.py")),
    # metrics
    Fault("macro-F1 ignores classes that are predicted and not gold", "lmrep/metrics/classification.py",
          "occurs = sums[..., 1] + sums[..., 2] > 0", "occurs = sums[..., 1] > 0",
          ("tests/metrics/test_classification.py",)),
    Fault("a wrong answer to an unanswerable question costs nothing", "lmrep/metrics/scripts.py",
          "np.where(answered, -1.0, 0.0)", "np.where(answered, 0.0, 0.0)",
          ("tests/metrics/test_answers.py",)),
    Fault("a run beats the baseline of a loss that it exceeds", "lmrep/metrics/__init__.py",
          "return value > trivial if metric.higher_is_better else value < trivial", "return value > trivial",
          ("tests/metrics", "tests/cli/test_train.py", "tests/analysis/test_report.py")),
    # planning
    Fault("the CPUs of a host count once for each of its processes", "lmrep/planning/run_cost.py",
          'members = hosts if name == "accelerators" else list({host["host"]: host for host in hosts}.values())',
          "members = hosts",
          ("tests/planning/test_run_cost.py",)),
    Fault("an energy counter that starts again loses what it had counted", "lmrep/planning/energy.py",
          "else now + max(self._limit - self._last, 0)", "else now",
          ("tests/planning/test_energy.py",)),
    # storage
    Fault("the best checkpoint is one of the newest", "lmrep/storage/checkpoints.py",
          "retained = steps[-self._keep :] + self._by_score(steps)[: self._keep_best]",
          "retained = steps[-self._keep :] + self._by_score(steps[-self._keep :])[: self._keep_best]",
          ("tests/storage/test_checkpoints.py",)),
    Fault("the copy of an earlier checkpoint passes for a later one", "lmrep/storage/manifests.py",
          'if manifest["step"] != step:', 'if manifest["step"] > step:',
          ("tests/storage/test_checkpoints.py",)),
    Fault("another process with the number of the holder keeps a lease", "lmrep/storage/lease.py",
          'if started is None or started != content.get("started"):', "if started is None:",
          ("tests/storage/test_lease.py",)),
    # tasks
    Fault("answers in packed examples are looked for in the first", "lmrep/tasks/span_extraction.py",
          'position = batch["first"] + jnp.maximum(batch[name], 0)', "position = jnp.maximum(batch[name], 0)",
          ("tests/tasks/test_span_extraction.py", "tests/tasks/test_properties.py")),
    Fault("the score of no answer is that of the window least sure of it", "lmrep/tasks/span_extraction.py",
          "nulls = np.minimum.reduceat(at_null, firsts[:-1])", "nulls = np.maximum.reduceat(at_null, firsts[:-1])",
          ("tests/tasks/test_span_answers.py", "tests/tasks/test_span_extraction.py")),
    Fault("words of packed sentences are averaged together", "lmrep/tasks/words.py",
          "same = equal(word) & equal(segment_ids) & (word >= 0)[:, :, None]",
          "same = equal(word) & (word >= 0)[:, :, None]",
          ("tests/tasks/test_tagging_words.py", "tests/tasks/test_tagging.py", "tests/tasks/test_properties.py")),
    # training
    Fault("all microbatches have the same dropout", "lmrep/training/step.py",
          "grad(params, microbatch, jax.random.fold_in(dropout_key, index), carry)",
          "grad(params, microbatch, dropout_key, carry)",
          ("tests/training/test_step.py",)),
    Fault("a skipped update leaves the carry as it was", "lmrep/training/step.py",
          "carry=Carry(initial.per_example, state.carry.shared)", "carry=state.carry",
          ("tests/training/test_step.py", "tests/training/test_faults.py")),
    Fault("a resumed run skips a batch", "lmrep/training/loop.py",
          "first - begin + skipped, stage.steps + skipped)",
          "first - begin + skipped + (first > begin), stage.steps + skipped + (first > begin))",
          ("tests/training/test_stages.py", "tests/training/test_loop.py")),
    Fault("a resumed run shows batches again that it had skipped", "lmrep/training/loop_state.py",
          'skipped = list(fields.get("skipped_batches", ()))', "skipped = []",
          ("tests/training/test_faults.py", "tests/training/test_loop.py")),
    # optimizers
    Fault("LAMB takes one norm for all layers of a stack", "lmrep/optimizers/lamb.py",
          "axes = tuple(range(is_stacked(spec), update.ndim))", "axes = tuple(range(update.ndim))",
          ("tests/optimizers",)),
    Fault("a gradient that is clipped is scaled twice", "lmrep/optimizers/base.py",
          "limit / jnp.maximum(optax.tree.norm(grads), limit / scale)",
          "scale * limit / jnp.maximum(optax.tree.norm(grads), limit / scale)",
          ("tests/optimizers/test_optimizers.py", "tests/optimizers/test_equations.py")),
    # analysis
    Fault("pruning leaves a layer with one head less than it must keep", "lmrep/analysis/heads.py",
          "if remaining[head[0]] > at_least:", "if remaining[head[0]] >= at_least:",
          ("tests/analysis/test_heads.py",)),
    Fault("a marked word has one character of what follows it", "lmrep/analysis/neighbours.py",
          "start, end - 2)", "start, end - 1)",
          ("tests/analysis/test_neighbours.py",)),
    # cli
    Fault("a run that fails exits as one that was refused", "lmrep/cli/main.py",
          "return error.exit_code", "return UserError.exit_code",
          ("tests/cli/test_main.py", "tests/cli/test_train.py")),
    Fault("the bounds of a flag are not checked", "lmrep/cli/arguments.py",
          "if expected := bounds.broken_by(value):", "if expected := bounds.broken_by(text):",
          ("tests/cli/test_main.py",)),
    # api.py
    Fault("a run resumes from its newest checkpoint though it is damaged", "lmrep/api.py",
          "resumed = checkpoints.newest()", "resumed = max(checkpoints.steps(), default=None)",
          ("tests/test_api.py", "tests/cli/test_runs.py")),
    Fault("a run is compared with the first validation of another objective", "lmrep/api.py",
          "in (compared[0], compared[-1]))", "in (validations[0], compared[-1]))",
          ("tests/test_api.py", "tests/training/test_stages.py")),
)
