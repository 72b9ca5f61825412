"""`ops launch`: one SGLang server per GPU, kept running, with a consumer beside each if asked.

`plan` decides every command line without touching the machine; `stage` copies the model into memory once;
`supervisor` starts, watches, restarts and stops the processes.
"""
