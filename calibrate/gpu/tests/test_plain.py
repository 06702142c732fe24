"""What needs no PyTorch: shapes, statistics, tables. Run: python -m unittest discover -s tests (in calibrate/gpu)."""

import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from servetwin_gpu import output, serving, shapes


class Shapes(unittest.TestCase):
    def test_the_8b_model_has_the_parameters_of_its_name(self):
        self.assertAlmostEqual(shapes.LLAMA_3_1_8B.weight_elements() / 1e9, 8.03, places=2)
        self.assertAlmostEqual(shapes.LLAMA_2_7B.weight_elements() / 1e9, 6.74, places=2)

    def test_token_counts_cover_both_sides_of_each_tile_edge_once(self):
        counts = shapes.token_counts()
        self.assertEqual(len(counts), len(set(counts)))
        for edge in (16, 64, 128, 256, 1024, 4096):
            for t in (edge - 1, edge, edge + 1):
                self.assertIn(t, counts)
        self.assertEqual((min(counts), max(counts)), (1, 8192))
        self.assertEqual(counts[:14], [2**i for i in range(14)])

    def test_decode_points_fit_the_memory_given(self):
        per = shapes.LLAMA_3_1_8B.kv_bytes_per_token_layer()
        self.assertEqual(per, 4096)
        points = shapes.decode_points(per, 1 << 30)
        self.assertTrue(all(b * c * per <= 1 << 30 for b, c in points))
        self.assertIn((1, 131072), points)
        self.assertNotIn((512, 131072), points)

    def test_uneven_contexts_repeat_and_have_the_mean_asked_for(self):
        for kind in shapes.RAGGED_KINDS:
            a = shapes.ragged_contexts(kind, 256, 1000)
            self.assertEqual(a, shapes.ragged_contexts(kind, 256, 1000))
            self.assertAlmostEqual(sum(a) / len(a) / 1000, 1.0, delta=0.15)
        one = shapes.ragged_contexts("one_long", 8, 1024)
        self.assertAlmostEqual(max(one) / sum(one), 0.5, delta=0.01)

    def test_statistics_count_pairs_under_the_causal_mask(self):
        s = shapes.batch_stats([10, 20], [(3, 5)])
        self.assertEqual(s["decode_ctx_sq_sum"], 500)
        self.assertEqual(s["prefill_pairs"], 6 + 7 + 8)
        self.assertEqual(s["prefill_ctx_sum"], 8)
        self.assertEqual(s["sampled_seqs"], 3)


class Tables(unittest.TestCase):
    def test_a_table_cut_off_in_a_row_goes_on_without_repeating(self):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "t.csv")
            t = output.Table(path, ["a", "b", "x"], ["a", "b"])
            t.add(a=1, b="u", x=0.5)
            t.add(a=2, b="u", x=1.5)
            t.close()
            with open(path, "a", encoding="utf-8") as f:
                f.write("3,u,0.")
            t = output.Table(path, ["a", "b", "x"], ["a", "b"])
            self.assertTrue(t.has(a=1, b="u") and t.has(a=2, b="u"))
            self.assertFalse(t.has(a=3, b="u"))
            t.add(a=3, b="u", x=2.5)
            t.close()
            with open(path, encoding="utf-8") as f:
                self.assertEqual(f.read().splitlines(), ["a,b,x", "1,u,0.5", "2,u,1.5", "3,u,2.5"])
            with self.assertRaises(SystemExit):
                output.Table(path, ["a", "other"], ["a"])

    def test_durations_and_device_names(self):
        self.assertEqual(output.parse_duration("4m"), 240)
        self.assertEqual(output.parse_duration("90s"), 90)
        self.assertEqual(output.parse_duration("1.5"), 1.5)
        with self.assertRaises(ValueError):
            output.parse_duration("-1s")
        self.assertEqual(output.system_name("NVIDIA H100 80GB HBM3"), "h100_sxm")
        self.assertEqual(output.system_name("NVIDIA H100 PCIe"), "h100")
        self.assertEqual(output.system_name("NVIDIA H200"), "h200_sxm")
        self.assertEqual(output.system_name("NVIDIA A100-SXM4-80GB"), "a100_sxm")


class Serving(unittest.TestCase):
    def server(self, code):
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)

    def test_the_address_is_found_among_lines_that_come_at_once(self):
        class Record:
            notes = []
            note = notes.append
        with self.server(r"print('one\ntwo\nhttp://127.0.0.1:1', flush=True); import time; time.sleep(30)") as server:
            self.assertEqual(serving.address(server, output.Deadline(10), Record), "http://127.0.0.1:1")
            server.kill()
        self.assertEqual(Record.notes, ["one", "two"])
        with self.server("raise SystemExit(3)") as server, self.assertRaisesRegex(SystemExit, "code 3"):
            serving.address(server, output.Deadline(10), Record)

    def test_versions_name_what_is_installed(self):
        found = output.versions()
        self.assertEqual(found["python"], ".".join(map(str, sys.version_info[:3])))


if __name__ == "__main__":
    unittest.main()
