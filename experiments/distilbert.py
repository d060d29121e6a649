"""DistilBERT (Sanh et al., 2019): a student of half as many layers learns what its teacher predicts.

    lmrep train --config=experiments/distilbert.py:teacher=runs/bert,data=files --workdir=runs/distilbert \\
        --config.data.files='/data/books-and-wikipedia/*.txt' --config.data.documents=blank_line

The teacher is a run or a published directory: BERT, RoBERTa or, with objective=causal_distillation,format=stream,
GPT-2. The student has its tokenizer and its network without token types, and starts from its layers 0, 2, 4, 7, 9, 11
(of another depth: evenly spaced from the first to the last). The loss is 5 times the divergence from the teacher's
distribution over all tokens, at a temperature of 2, twice the masked-LM loss, and the cosine distance between the last
hidden states. Rare tokens are masked more often. Adam at 5e-4, with 5 % of warm-up and no weight decay, on batches of
4,000 sequences; the steps make three passes over Books and Wikipedia.

The network, in fields of config.model, with all parameters of pretraining:

    size  layers  width  heads   mlp  max_length   vocab  dropout  parameters
    base       6    768     12  3072         512  30,522      0.1  66,985,530

Cost: in the paper, about 90 hours on 8 V100s of 16 GB. Expected: GLUE 77.0 on the development sets, where BERT-base has
79.5; IMDb 92.82; SQuAD 1.1 77.7 exact match and 85.8 F1.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/bert.py:size=tiny,format=packed --workdir=runs/bert-tiny
    lmrep train --config=experiments/distilbert.py:size=tiny,teacher=runs/bert-tiny --workdir=runs/distilbert-tiny

size=tiny sets steps=400, batch_size=32, length=64, vocab_size=2048, learning_rate=0.002, layers=2, width=128, heads=4
and mlp=512.

Choices after the colon; each of the paper's ablations is one flag:

    teacher    a workdir or a Hugging Face directory
    layers     of the student; 0: half of the teacher's
    losses     all; or without one of them: no_ce, no_mlm, no_cos; mlm: the same student without a teacher's losses
    start      teacher, or random
    head       teacher: the masked-LM head starts from the teacher's too; random: its output bias alone does
    draw       batch: masks drawn over the batch, as released; sequence: in each sequence by itself
    size       base; tiny: batches and steps for two cores
    model, objective, format, data, optimizer, mesh: as in bert.py; the network is the teacher's, if there is one

The paper's ablations change the mean of GLUE by -0.31 (no_mlm), -1.46 (no_cos), -2.96 (no_ce) and -3.69
(start=random). `experiments/benchmarks/distillation.py` compares them on two cores.
"""

from lmrep.experiment.pretraining import Paper, choices, finish, start

SIZES = {"base": "distilbert_base"}
PAPERS = (Paper("Sanh et al., 2019", "BooksCorpus and English Wikipedia, 3.3 billion words", unpublished=("steps",)),)
LOSSES = {  # the weights that are 0
    "all": (), "no_ce": ("ce",), "no_mlm": ("mlm", "clm"), "no_cos": ("cos",), "mlm": ("ce", "cos"),
}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    # The released code cuts the lines of a file, which hold a text each, where they are longer than a sequence;
    # doc_sentences is nearest to that.
    chosen = choices(argument, SIZES, objective="distillation", format="doc_sentences", optimizer="distilbert",
                     teacher="", layers=0, losses=("all", tuple(LOSSES)), start=("teacher", ("teacher", "random")),
                     head=("teacher", ("teacher", "random")), draw=("batch", ("batch", "sequence")))
    config = start(chosen)
    # Three passes over about 4.3 billion tokens, which is our estimate of this corpus.
    config.steps, config.batch_size, config.length = 6_300, 4000, 512
    if chosen.objective == "distillation":
        config.objective.update({"alpha_ce": 5.0, "alpha_mlm": 2.0, "alpha_cos": 1.0, "temperature": 2.0,
                                 "rate": 0.15, "mask": 0.8, "keep": 0.1, "random": 0.1, "smoothing": 0.7})
    if "draw" in config.objective:
        config.objective.draw = chosen.draw
    for name in LOSSES[chosen.losses]:
        if f"alpha_{name}" in config.objective:
            config.objective[f"alpha_{name}"] = 0.0
    if chosen.optimizer == "distilbert":  # Adam
        config.optimizer.update({"betas": (0.9, 0.98), "eps": 1e-6, "bias_correction": True, "weight_decay": 0.0,
                                 "clip": 5.0})
        config.optimizer.schedule.update({"name": "linear", "decay_from": "warmup"})
    config.optimizer.learning_rate = 5e-4
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": 315 / 6_300})
    config = finish(config, chosen)
    if chosen.teacher:
        from lmrep.interop import student

        config = student.follow(
            config, chosen.teacher, chosen.layers, chosen.start == "teacher", chosen.head == "teacher")
        if chosen.losses == "mlm":
            config.frozen = {}
    return config
