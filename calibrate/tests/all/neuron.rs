//! Serving on Inferentia2 and Trainium1, predicted: batches, buckets, and who chooses the tokens.

use std::fs;
use std::path::Path;

use calibrate::validate::Source;

use crate::common::{measured, predicted, refusal, validate};

#[test]
fn static_decoders_at_batch_4_are_within_their_bars() {
    let Some(source) = measured("static_decoders_at_batch_4_are_within_their_bars") else {
        return;
    };
    let report = validate(&source, &["neuron_batch4"]);
    assert!(report.rows.iter().all(|r| !r.fitted));
    for (metric, bar) in [("tpot_ms", 5.0), ("output_tok_s", 8.0), ("ttft_ms", 35.0)] {
        let e = predicted(&report, "neuron_batch4", metric);
        assert!(e.n == 13 && e.median_ape <= bar, "{metric}: {e:?}");
    }
}

#[test]
fn seventy_billion_parameters_under_tgi_are_within_their_bars() {
    let Some(source) = measured("seventy_billion_parameters_under_tgi_are_within_their_bars")
    else {
        return;
    };
    let report = validate(&source, &["neuron_llmperf"]);
    assert!(report.rows.iter().all(|r| !r.fitted));
    for metric in ["output_tok_s", "ttft_p50_ms", "latency_ms_per_token"] {
        let e = predicted(&report, "neuron_llmperf", metric);
        assert!(e.n == 13 && e.median_ape <= 25.0, "{metric}: {e:?}");
    }
}

#[test]
fn the_plug_in_for_vllm_is_within_its_bars_whoever_chooses_the_tokens() {
    let Some(source) =
        measured("the_plug_in_for_vllm_is_within_its_bars_whoever_chooses_the_tokens")
    else {
        return;
    };
    let report = validate(&source, &["inf2_vllm"]);
    for (metric, bar) in [("output_tok_s", 40.0), ("itl_mean_ms", 20.0)] {
        let e = predicted(&report, "inf2_vllm", metric);
        assert!(e.n == 10 && e.median_ape <= bar, "{metric}: {e:?}");
    }
}

/// A table of one static run, in the form of AWS's page.
fn table(dir: &Path, batch: u32, rate: &str) {
    let head = "Model,instance,family,table,neuron_sdk,tp,dp,batch,seq_len,input_tokens,output_tokens,dtype,weight_dtype,output_tok_s,\
                ttft_p50_ms,ttft_p99_ms,tpot_p50_ms,tpot_p99_ms,Framework\n";
    let row = format!(
        "Llama-2-70b,trn1.32xlarge,trn1,throughput,2.18.0,32,,{batch},4096,2048,2048,FP16,bf16,{rate},2722,2731,31.8,33.2,x\n"
    );
    let folder = dir.join("serving2");
    fs::create_dir_all(&folder).unwrap();
    fs::write(
        folder.join("neuron_decoder_batch4.csv"),
        format!("{head}{row}{row}"),
    )
    .unwrap();
}

#[test]
fn a_table_of_ones_own_is_predicted_once_per_row_and_figure() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    table(dir.path(), 8, "200");
    let source = Source::Folder(dir.path().to_owned());
    let report = validate(&source, &["neuron_batch4"]);
    let figures: Vec<(&str, f64)> = report
        .rows
        .iter()
        .map(|r| (r.metric.as_str(), r.predicted.unwrap()))
        .collect();
    let [("tpot_ms", tpot), ("ttft_ms", ttft), ("output_tok_s", rate)] = figures[..] else {
        panic!("{figures:?}");
    };
    // Eight rows of one bucket: the rate is what the latencies say.
    let seconds = (ttft + 2047.0 * tpot) * 1e-3;
    assert!((rate * seconds / (8.0 * 2048.0) - 1.0).abs() < 1e-6);
    assert!(report.rows.iter().all(|r| r.case.contains(" b8 ")));
    table(dir.path(), 8, "-1");
    let error = refusal(&source, &["neuron_batch4"]);
    assert!(
        error.contains("neuron_decoder_batch4.csv:2: output_tok_s"),
        "{error}"
    );
}

#[test]
fn the_host_takes_longer_for_more_slots_and_the_device_does_not() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    // The first run's tokens were chosen on the host, the second's on the device.
    let (host, device) = ("2026-03-03-14-11-21", "2026-03-03-15-46-00");
    let mut table = String::from(
        "Date,max_batch,seq_len,max_users,load_mode,input_tokens,output_tokens,achieved_rps,ttft_mean_ms,itl_mean_ms,output_tok_s\n",
    );
    for date in [host, device] {
        for (users, mode) in [(1, "synchronous"), (4, "throughput")] {
            table += &format!("{date},32,4096,{users},{mode},1500,900,,300,50,20\n");
        }
    }
    fs::write(dir.path().join("inf2_guidellm.csv"), table).unwrap();
    let report = validate(&Source::Folder(dir.path().to_owned()), &["inf2_vllm"]);
    let itl = |date: &str, users: u32| {
        let name = format!("users={users}");
        let of = |r: &&calibrate::validate::Row| {
            r.metric == "itl_mean_ms" && r.case.starts_with(date) && r.case.ends_with(&name)
        };
        let row = report.rows.iter().find(of).expect("a row");
        row.predicted.unwrap()
    };
    // All 32 rows' logits come to the host, whoever uses them; each user adds a choice.
    let logits = itl(host, 1) - itl(device, 1);
    assert!((5.0..30.0).contains(&logits), "{logits}");
    let more = (itl(host, 4) - itl(host, 1)) - (itl(device, 4) - itl(device, 1));
    assert!((3.0..6.0).contains(&more), "{more}");
}
