"""The kernels and the model against plain references. Needs PyTorch, no GPU: the Triton kernels run in its interpreter.

Run: TRITON_INTERPRET=1 python -m unittest discover -s tests (in calibrate/gpu).
"""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
try:
    import torch
except ImportError as e:
    raise unittest.SkipTest(f"no PyTorch: {e}")

from servetwin_gpu import shapes
from servetwin_gpu.engines import PagedEngine, Request
from servetwin_gpu.kernels import Kernels, relative_error
from servetwin_gpu.model import Model, Step
from servetwin_gpu.timing import noting

if os.environ.get("TRITON_INTERPRET") == "1":
    # Triton's interpreter (seen in 3.6) takes int() of arrays of one element, which numpy refuses from 2.4 on.
    from triton.runtime import interpreter
    plain = interpreter._patch_lang_tensor

    def patched(tensor, *scope):
        plain(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patched


class Forward(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(0)
        cls.notes = []
        cls.model = Model(shapes.SMALL, Kernels("cpu", cls.notes.append), 1024, 512)
        cls.tokens = torch.randint(1024, (60,))

    def logits(self, decodes, chunks, tokens, pages):
        with torch.inference_mode():
            return self.model.forward(Step(self.model, decodes, chunks, tokens=tokens, pages=pages))

    def test_a_token_decoded_equals_the_same_token_prefilled(self):
        pages = self.model.take_pages(4)
        whole = self.logits([], [(60, 0)], self.tokens, pages)
        other = self.model.take_pages(4)
        self.logits([], [(59, 0)], self.tokens[:59], other)
        decoded = self.logits([60], [], self.tokens[59:], other)
        self.assertLess(relative_error(decoded, whole), 1e-4)

    def test_a_chunk_on_context_equals_the_whole_prompt(self):
        pages = self.model.take_pages(4)
        whole = self.logits([], [(60, 0)], self.tokens, pages)
        other = self.model.take_pages(4)
        self.logits([], [(37, 0)], self.tokens[:37], other)
        chunked = self.logits([], [(23, 37)], self.tokens[37:], other)
        self.assertLess(relative_error(chunked, whole), 1e-4)

    def test_a_mixed_step_equals_its_sequences_alone(self):
        a, b = self.model.take_pages(4), self.model.take_pages(2)
        self.logits([], [(59, 0)], self.tokens[:59], a)
        alone = [self.logits([60], [], self.tokens[59:], a), self.logits([], [(20, 0)], self.tokens[:20], b)]
        mixed = self.logits([60], [(20, 0)], torch.cat((self.tokens[59:], self.tokens[:20])), torch.cat((a, b)))
        self.assertLess(relative_error(mixed, torch.cat(alone)), 1e-4)

    def test_a_served_request_gets_the_tokens_it_gets_alone_and_pages_come_back(self):
        options = {"small": True, "device": "cpu", "dtype": "fp32", "max_seqs": 8, "step_log": None}
        engine = PagedEngine(options)
        engine.scheduler.max_tokens = 32

        def serve(prompts, limit=6):
            s, tokens = engine.scheduler, {i: [] for i in range(len(prompts))}
            for i, prompt in enumerate(prompts):
                self.assertTrue(s.add(Request(i, prompt, limit)))
            while s.running or s.waiting:
                decodes, chunks = s.next()
                self.assertLessEqual(len(decodes) + sum(n for _, n in chunks), s.max_tokens)
                engine.step(decodes, chunks)
                for r in decodes + [r for r, _ in chunks if r.context >= len(r.prompt)]:
                    tokens[r.id].append(r.last)
                    if len(tokens[r.id]) == limit:
                        s.release(r)
            self.assertEqual(sorted(s.free), list(range(1, s.total + 1)))
            return tokens

        prompts = [self.tokens[:20].tolist(), self.tokens[5:18].tolist(), self.tokens.tolist() + self.tokens[:11].tolist()]
        together = serve(prompts)
        for i, prompt in enumerate(prompts):
            self.assertEqual(serve([prompt])[0], together[i])

    def test_whole_prompts_of_a_shape_without_a_plan_take_the_kernel_for_chunks(self):
        engine, used = PagedEngine({"small": True, "device": "cpu", "dtype": "fp32", "max_seqs": 8, "step_log": None}), []
        kernels = engine.model.kernels
        for kind in ("whole", "context"):
            run = getattr(kernels, f"prefill_{kind}")[1]
            setattr(kernels, f"prefill_{kind}", (kind, lambda *a, kind=kind, run=run: used.append(kind) or run(*a)))
        engine.max_tokens = 12
        engine.plan([6])
        self.assertEqual(kernels.planned, {(1, 6), (2, 6)})
        for chunks, kind in (([(6, 0)] * 2, "whole"), ([(6, 0), (5, 0)], "context"), ([(6, 6)], "context")):
            used.clear()
            engine.model.next_tokens(Step(engine.model, [], chunks))
            self.assertEqual(set(used), {kind})

    def test_a_row_that_fails_is_noted_and_the_next_one_goes_on(self):
        class Record:
            notes = []
            note = notes.append
        for n in (1, 0, 2):
            with noting(Record, "cpu", f"row {n}"):
                Record.notes.append(1 // n)
        self.assertEqual(Record.notes[0], 1)
        self.assertRegex(Record.notes[1], "^row 0 not measured: ZeroDivisionError")
        self.assertEqual(Record.notes[2], 0)

    @unittest.skipUnless(os.environ.get("TRITON_INTERPRET") == "1", "set TRITON_INTERPRET=1")
    def test_the_triton_kernels_equal_their_references(self):
        self.assertEqual(self.notes, [])
        self.assertIsNotNone(self.model.kernels.triton)


if __name__ == "__main__":
    unittest.main()
