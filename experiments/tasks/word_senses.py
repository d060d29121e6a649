"""Word senses in the framework of Raganato et al. (2017): the sense of each word, among the senses of its lemma. F1.

    lmrep train --config=experiments/tasks/word_senses.py:init=runs/bert,data=WSD_Evaluation_Framework \\
        --workdir=runs/senses
    lmrep train --workdir=runs/nearest \\
        --config=experiments/tasks/word_senses.py:network=nearest,features=runs/bert,data=WSD_Evaluation_Framework

`data` is the folder of the published files: SemCor is trained on, SemEval-2007 is validation data, and ALL, all five
sets together, test data. Other files NAME.data.xml, with NAME.gold.key.txt beside them, are given by
--config.data.train and so on. The candidates of a word are the senses that its lemma has as its part of speech in the
training data; of a lemma that occurs as others alone, its most frequent sense is the answer, and a lemma that does not
occur stays without one, which lowers recall. The first line trains a classifier with an output for each sense; the
second compares the vectors of a frozen encoder with the mean vector of each sense, as Peters et al. (2018, section
5.3), in two epochs: the means are complete after one, and only the scale of the cosines is fitted.
--config.objective.features.layers chooses the layer.

Cost: 226,036 words of SemCor, each read with its sentence. Expected: F1 of 69.0 on ALL with the second layer of ELMo,
where the first sense of WordNet has 65.9 (Peters et al., 2018). They answer WordNet's first sense for lemmas that
SemCor lacks, so that no word stays without an answer.
It has not been run with this file.

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 32, Adam at 3e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 128 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=128, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    config = compose_known(argument, "word_senses")
    if config.objective.get("network") == "nearest":
        config.epochs = 2.0
    return config
