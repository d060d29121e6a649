"""Token stores built by pipelines on Apache Beam, for corpora that one machine is too slow for.

The result is, byte for byte, what `lmrep.data.store.prepare` builds: the same functions split, tokenize and write. The
machine that starts the build runs four pipelines, one after the other, and needs 17 bytes of memory per document:

    scan       each reader of the corpus: hash and length of its documents, from which the splits follow
    sample     each reader: the documents that the tokenizer is trained on, which this machine does; not run where a
               vocabulary is loaded
    tokenize   each reader: its documents in blocks of one split and one part of the store, each block tokenized by any
               worker
    write      each file of records and each index, from the tokens of the blocks

Workers exchange files in a folder beside the store, on a file system that all of them see (`folder.py`). Each pipeline
ends with a file that says that it is complete, from which a build that was stopped continues. The store has its
manifest last, so that it is complete or is not read.

Only `runner.py` imports Apache Beam; `workers.py` has the functions that workers call.
"""
