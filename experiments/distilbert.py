"""DistilBERT (Sanh et al., 2019): a student of half as many layers learns what its teacher predicts.

    lmrep train --config=experiments/distilbert.py:teacher=runs/bert,data=files --workdir=runs/distilbert \\
        --config.data.files='/data/books-and-wikipedia/*.txt' --config.data.documents=blank_line

The teacher is a run or a published directory: BERT, RoBERTa or, with objective=causal_distillation,format=stream,
GPT-2. The student has its tokenizer and its network without token types, and starts from its layers 0, 2, 4, 7, 9, 11
(of another depth: evenly spaced from the first to the last). The loss is 5 times the divergence from the teacher's
distribution over all tokens, at a temperature of 2, twice the masked-LM loss, and the cosine distance between the last
hidden states. Rare tokens are masked more often. Adam at 5e-4, with 5 % of warm-up and no weight decay, on batches of
4,000 sequences; steps are those of three passes over Books and Wikipedia.

Cost: in the paper, about 90 hours on 8 V100s of 16 GB. Expected: GLUE 77.0 on the development sets, where BERT-base has
79.5; IMDb 92.82; SQuAD 1.1 77.7 exact match and 85.8 F1.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/bert.py:size=tiny,format=packed --workdir=runs/bert-tiny
    lmrep train --config=experiments/distilbert.py:size=tiny,teacher=runs/bert-tiny --workdir=runs/distilbert-tiny

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

from lmrep.experiment.compose import choose, compose

LOSSES = {  # the weights that are 0
    "all": (), "no_ce": ("ce",), "no_mlm": ("mlm", "clm"), "no_cos": ("cos",), "mlm": ("ce", "cos"),
}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choose(argument, {"base": "distilbert_base"}, teacher="", layers=0, losses=("all", tuple(LOSSES)),
                    start=("teacher", ("teacher", "random")), head=("teacher", ("teacher", "random")),
                    draw=("batch", ("batch", "sequence")))
    config = compose(chosen)
    for name in LOSSES[chosen.losses]:
        if f"alpha_{name}" in config.objective:
            config.objective[f"alpha_{name}"] = 0.0
    if "draw" in config.objective:
        config.objective.draw = chosen.draw
    if chosen.teacher:
        from lmrep.interop import student

        student.follow(config, chosen.teacher, chosen.layers, chosen.start == "teacher", chosen.head == "teacher")
        if chosen.losses == "mlm":
            config.frozen = {}
    return config
