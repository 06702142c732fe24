"""A small OpenAI-compatible server in front of an engine: completions and chat, streamed, one event per token.

    python -m servetwin_gpu.server --engine paged --port 8100 --device cuda

There is no tokenizer: a prompt text counts one token per byte, a prompt of token ids is taken as it is, and an answer's text
has one character per token. Every request runs to `max_tokens`. Standard library only.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import signal
import sys
import threading
import time

from . import engines

LARGEST_BODY = 16 << 20


class Server:
    """HTTP on one side, the engine's pipe on the other."""

    def __init__(self, connection, facts, loop):
        self.connection, self.facts, self.loop = connection, facts, loop
        self.ids, self.queues = itertools.count(1), {}
        self.sending = threading.Lock()
        self.dead = None

    def listen_to_engine(self):
        """Thread: hands out the engine's tokens, one call into the event loop per step."""
        try:
            while True:
                self.loop.call_soon_threadsafe(self.hand_out, self.connection.recv())
        except (EOFError, OSError):
            self.dead = "the engine's process ended"
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.hand_out, [(i, None, True) for i in list(self.queues)])
        except RuntimeError:
            return  # The server has ended, and its loop with it.

    def hand_out(self, tokens):
        for id, token, finished in tokens:
            queue = self.queues.get(id)
            if queue:
                queue.put_nowait((token, finished))

    def tell_engine(self, *message):
        with self.sending:
            self.connection.send(message)

    async def handle(self, reader, writer):
        """One connection, kept alive between requests."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                line, *fields = head.decode("latin-1").split("\r\n")
                method, path, _ = line.split(" ", 2)
                headers = dict(f.split(":", 1) for f in fields if ":" in f)
                headers = {k.lower(): v.strip() for k, v in headers.items()}
                length = int(headers.get("content-length", 0))
                if length > LARGEST_BODY or "transfer-encoding" in headers:
                    await self.answer(writer, 413, {"error": {"message": "body too large or without a length"}})
                    return
                body = await reader.readexactly(length)
                await self.route(method, path.split("?")[0], body, reader, writer)
                if headers.get("connection", "").lower() == "close":
                    return
        except (asyncio.IncompleteReadError, ConnectionError, ValueError, asyncio.LimitOverrunError, asyncio.CancelledError):
            return
        finally:
            writer.close()

    async def route(self, method, path, body, reader, writer):
        if path == "/health":
            status = 503 if self.dead else 200
            return await self.answer(writer, status, {"status": self.dead or "ok"})
        if path == "/v1/models":
            model = {"id": self.facts["model"], "object": "model", "owned_by": "servetwin_gpu", "engine": self.facts}
            return await self.answer(writer, 200, {"object": "list", "data": [model]})
        if path in ("/v1/completions", "/v1/chat/completions") and method == "POST":
            try:
                request = json.loads(body)
                chat = path.endswith("chat/completions")
                prompt = prompt_tokens(request, chat, self.facts["vocab"])
                limit = int(request.get("max_tokens") or request.get("max_completion_tokens") or 16)
                if not prompt or limit < 1:
                    raise ValueError("prompt and max_tokens must not be empty")
            except (ValueError, KeyError, TypeError, AttributeError) as e:
                return await self.answer(writer, 400, {"error": {"message": f"bad request: {e}"}})
            return await self.generate(request, prompt, limit, chat, reader, writer)
        await self.answer(writer, 404, {"error": {"message": f"no such path: {path}"}})

    async def answer(self, writer, status, value):
        text = json.dumps(value).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(text)) + text)
        await writer.drain()

    async def generate(self, request, prompt, limit, chat, reader, writer):
        id, queue = next(self.ids), asyncio.Queue()
        self.queues[id] = queue
        finished, made, texts = False, 0, []
        try:
            self.tell_engine("add", id, (prompt, limit))
            stream = bool(request.get("stream"))
            base = {"id": f"cmpl-{id}", "object": "chat.completion.chunk" if chat else "text_completion",
                    "created": int(time.time()), "model": self.facts["model"]}
            if stream:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            while not finished:
                token, finished = await queue.get()
                if token is None:
                    if not stream:
                        return await self.answer(writer, 500, {"error": {"message": self.dead or "the request does not fit"}})
                    event(writer, {"error": {"message": self.dead or "the request does not fit"}})
                    break
                made += 1
                text = chr(33 + token % 90)
                if not stream:
                    texts.append(text)
                    continue
                reason = "length" if finished else None
                choice = {"index": 0, "finish_reason": reason, **({"delta": {"content": text}} if chat else {"text": text})}
                event(writer, {**base, "choices": [choice]})
                if queue.empty():
                    await writer.drain()
            usage = {"prompt_tokens": len(prompt), "completion_tokens": made, "total_tokens": len(prompt) + made}
            if stream:
                if (request.get("stream_options") or {}).get("include_usage"):
                    event(writer, {**base, "choices": [], "usage": usage})
                raw = b"data: [DONE]\n\n"
                writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(raw), raw))
                await writer.drain()
            else:
                text = "".join(texts)
                choice = {"index": 0, "finish_reason": "length",
                          **({"message": {"role": "assistant", "content": text}} if chat else {"text": text})}
                base["object"] = "chat.completion" if chat else "text_completion"
                await self.answer(writer, 200, {**base, "choices": [choice], "usage": usage})
        finally:
            del self.queues[id]
            if not finished:
                self.tell_engine("cancel", id, None)


def event(writer, value):
    raw = b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
    writer.write(b"%x\r\n%s\r\n" % (len(raw), raw))


def prompt_tokens(request, chat, vocab):
    """Token ids of a request's prompt: ids as given, otherwise the bytes of the text."""
    if chat:
        prompt = "".join(f"{m['role']}: {m['content']}\n" for m in request["messages"])
    else:
        prompt = request["prompt"]
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return list(prompt.encode())
    if not all(isinstance(t, int) and 0 <= t < vocab for t in prompt):
        raise ValueError(f"a prompt is a text or a list of token ids below {vocab}")
    return prompt


async def serve(connection, facts, port):
    loop = asyncio.get_running_loop()
    server = Server(connection, facts, loop)
    threading.Thread(target=server.listen_to_engine, daemon=True).start()
    http = await asyncio.start_server(server.handle, "127.0.0.1", port, backlog=1024)
    print(f"http://127.0.0.1:{http.sockets[0].getsockname()[1]}", flush=True)
    stop = asyncio.Event()
    for s in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(s, stop.set)
    await stop.wait()
    http.close()
    if not server.dead:
        server.tell_engine("stop", 0, None)


def main():
    p = argparse.ArgumentParser(prog="python -m servetwin_gpu.server", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--engine", choices=("paged", "transformers"), default="paged")
    p.add_argument("--port", type=int, default=0, help="0: any free port; the address is printed on stdout")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--dtype", choices=("bf16", "fp32"))
    p.add_argument("--small", action="store_true", help="a tiny model")
    p.add_argument("--max-seqs", type=int, default=128, help="most sequences in a step (default 128)")
    p.add_argument("--attention", default="paged|sdpa", help="transformers' attention implementation (default paged|sdpa)")
    p.add_argument("--step-log", help="write one row per step here (engine `paged`)")
    a = p.parse_args()
    options = vars(a)
    options["dtype"] = a.dtype or ("bf16" if a.device == "cuda" else "fp32")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=engines.main, args=(theirs, options), daemon=True)
    process.start()
    theirs.close()
    try:
        kind, facts = ours.recv()
    except EOFError:
        raise SystemExit("the engine did not start; its error is above")
    assert kind == "ready"
    asyncio.run(serve(ours, facts, a.port))
    process.join(15)
    if process.is_alive():
        process.terminate()


if __name__ == "__main__":
    sys.exit(main())
