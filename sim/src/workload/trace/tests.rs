//! Tests of traces: every format, every column, and files that are none.

use proptest::prelude::*;

use super::columns::calendar_seconds;
use super::*;

fn cursor(text: &str) -> Result<Lines, String> {
    let bytes = std::io::Cursor::new(text.as_bytes().to_vec());
    Lines::from_reader(Box::new(bytes), "t")
}

fn drain(mut reader: TraceReader) -> Result<Vec<TraceRow>, String> {
    let mut rows = Vec::new();
    let mut row = TraceRow::default();
    while reader.next_row(&mut row)? {
        rows.push(row.clone());
    }
    Ok(rows)
}

fn columns(text: &str) -> TraceColumns {
    TraceColumns::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn read(text: &str, format: TraceFormat) -> Result<(Vec<TraceRow>, u64), String> {
    let lines = Lines::from_reader(
        Box::new(std::io::Cursor::new(text.as_bytes().to_vec())),
        "t",
    )?;
    let mut reader = TraceReader::new(lines, format)?;
    let mut rows = Vec::new();
    let mut row = TraceRow::default();
    while reader.next_row(&mut row)? {
        rows.push(row.clone());
    }
    Ok((rows, reader.skipped))
}

fn fails(text: &str, words: &[&str]) {
    let e = read(text, TraceFormat::Auto).unwrap_err();
    for w in words {
        assert!(e.contains(w), "`{w}` not in: {e}");
    }
}

#[test]
fn every_format_is_told_from_its_first_line() {
    let cases = [
        "arrival_s,input_tokens,output_tokens\n10.0,374,44\n14.5,396,109\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5000000,374,44\n\
         2023-11-16 18:15:51.0000000,396,109\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 23:59:58.000000+00:00,374,44\n\
         2024-05-11 00:00:02.500000+00:00,396,109\n",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
         5,ChatGPT,374,44,418,Conversation log\n7,GPT-4,12,0,12,API log\n9.5,GPT-4,396,109,505,API log\n",
        "id,stream,arrival_s,prompt_tokens,output_tokens,outcome\n0,0,1.000000000,374,44,finished\n\
         1,0,5.500000000,396,109,finished\n",
        "\u{feff}arrived_at,num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n2.0,374,44,418,8.5\n6.5,396,109,505,3.6\n",
        "request_id,timestamp,input_tokens,output_tokens\n0,0.25,374,44\n1,4.75,396,109\n",
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n0,2,0,7.0,1,374,44\n\
         1,2,0,11.5,1,396,109\n",
        // AIPerf writes requests as they end; its warm-up and what failed is no load.
        "{\"metadata\":{\"benchmark_phase\":\"warmup\",\"request_start_ns\":1},\"metrics\":{}}\n\
         {\"metadata\":{\"request_start_ns\":6500000000},\"metrics\":{\"input_sequence_length\":{\"value\":396,\"unit\":\"tokens\"},\
         \"output_sequence_length\":{\"value\":109,\"unit\":\"tokens\"}},\"error\":null}\n\
         {\"metadata\":{\"request_start_ns\":2000000000},\"metrics\":{\"input_sequence_length\":{\"value\":374},\
         \"output_sequence_length\":{\"value\":44}},\"error\":null}\n\
         {\"metadata\":{\"request_start_ns\":3000000000},\"metrics\":{\"input_sequence_length\":{\"value\":9}},\"error\":{\"code\":503}}\n",
        "{\"date\": \"20261001\", \"input_lens\": [396, 128, 374], \"output_lens\": [109, 0, 44], \"start_times\": [104.5, 101.0, 100.0],\n\
         \"errors\": [\"\", \"reset\", \"\"], \"itls\": [[0.1], [], [0.2]]}\n",
        "{\n \"metadata\": {\"version\": 2},\n \"benchmarks\": [{\"requests\": {\"successful\": [\n\
         {\"prompt_tokens\": 374, \"output_tokens\": 44, \"info\": {\"timings\": {\"request_start\": 1760000000.5}}},\n\
         {\"input_metrics\": {\"text_tokens\": 396}, \"output_metrics\": {\"text_tokens\": 109}, \"request_start_time\": 1760000005.0}],\n\
         \"errored\": [{\"info\": null}]}}]}\n",
    ];
    for text in cases {
        let (rows, _) = read(text, TraceFormat::Auto).unwrap();
        let got: Vec<_> = rows
            .iter()
            .map(|r| (r.arrival_s, r.prompt_tokens, r.output_tokens))
            .collect();
        assert_eq!(got, [(0.0, 374, 44), (4.5, 396, 109)], "{text}");
    }
}

#[test]
fn the_requests_of_a_run_are_sorted_since_they_are_written_as_they_end() {
    let text = "id,outcome,prompt_tokens,output_tokens,arrival_s\n2,finished,20,2,3.0\n1,finished,11,1,1.0\n\
                0,finished,10,1,1.0\n3,timed_out,30,0,7.5\n";
    let (rows, _) = read(text, TraceFormat::Auto).unwrap();
    let got: Vec<_> = rows
        .iter()
        .map(|r| (r.arrival_s, r.prompt_tokens, r.output_tokens))
        .collect();
    assert_eq!(
        got,
        [(0.0, 10, 1), (0.0, 11, 1), (2.0, 20, 2), (6.5, 30, 1)]
    );
    fails(
        "id,prompt_tokens,output_tokens,arrival_s\n",
        &["no requests"],
    );
    fails(
        "id,prompt_tokens,output_tokens,arrival_s\n1,5,5,nan\n",
        &["t:2"],
    );
}

#[test]
fn any_columns_make_a_trace_when_they_are_named() {
    let wanted = [(0.0, 374, 44, Some(100)), (4.5, 396, 109, None)];
    for (text, names) in [
        (
            "when;who\n", // No comma: one column, which is none of those asked for.
            "arrival=when,prompt=in,output=out",
        ),
        (
            "ts,user,in,out,cap\n1000,a,374,44,100\n5500,b,396,109,\n",
            "arrival=ts,prompt=in,output=out,max_tokens=cap,session=user,time=ms",
        ),
        (
            "in,out,cap,at,who\n374,44,100,2023-11-16T18:15:46.5Z,a\n396,109,,2023-11-16T18:15:51Z,b\n",
            "arrival=at,prompt=in,output=out,max_tokens=cap,session=who",
        ),
        (
            "{\"t\": 7000000, \"usage\": {\"in\": 374, \"out\": 44}, \"cap\": 100, \"who\": \"a\"}\n\
             {\"t\": 11500000, \"usage\": {\"in\": \"396\", \"out\": 109}, \"who\": \"b\"}\n",
            "arrival=t,prompt=usage.in,output=usage.out,max_tokens=cap,session=who,time=us",
        ),
    ] {
        let reader = TraceReader::with_columns(cursor(text).unwrap(), &columns(names));
        let rows = reader.and_then(drain);
        if text.starts_with("when;") {
            let e = rows.unwrap_err();
            assert!(
                e.contains("t:1: no column `when`; the columns are when;who"),
                "{e}"
            );
            continue;
        }
        let rows = rows.unwrap();
        let got: Vec<_> = rows
            .iter()
            .map(|r| (r.arrival_s, r.prompt_tokens, r.output_tokens, r.max_tokens))
            .collect();
        assert_eq!(got, wanted, "{text}");
        assert!(rows[0].session.is_some() && rows[0].session != rows[1].session);
    }
    let bad = "ts,in,out\n1,2,3\n2,many,3\n";
    let e = TraceReader::with_columns(
        cursor(bad).unwrap(),
        &columns("arrival=ts,prompt=in,output=out"),
    )
    .and_then(drain)
    .unwrap_err();
    assert_eq!(e, "t:3: column `in`: expected a number, got \"many\"");
    for (text, words) in [
        ("arrival=ts,prompt=in", "`output` is missing"),
        ("arrival", "has no `=`"),
        ("arrival=a,prompt=b,output=c,when=d", "unknown key `when`"),
        ("arrival=a,prompt=b,output=c,time=min", "none of auto"),
    ] {
        let e = TraceColumns::parse(text).unwrap_err();
        assert!(e.contains(words), "{text}: {e}");
    }
}

#[test]
fn results_of_other_tools_that_are_no_trace_say_what_is_missing() {
    fails(
        "num_prefill_tokens,num_decode_tokens\n5,5\n",
        &[
            "no column `arrived_at`",
            "prompt_column = \"num_prefill_tokens\"",
        ],
    );
    fails(
        "{\"input_lens\": [1], \"output_lens\": [1]}",
        &["start_times", "--save-detailed"],
    );
    fails(
        "{\"input_lens\": [1, 2], \"output_lens\": [1], \"start_times\": [0, 1]}",
        &["input_lens has 2", "output_lens 1"],
    );
    let two = "{\"benchmarks\": [{\"requests\": {\"successful\": []}}, {\"requests\": {\"successful\": []}}]}";
    fails(two, &["2 benchmarks", "jq"]);
    fails("{\"benchmarks\": [}", &["t:1"]);
    fails(
        "{\"benchmarks\": [{\"requests\": {\"successful\": [{\"prompt_tokens\": 1, \"output_tokens\": 1}]}}]}",
        &["request 1", "start"],
    );
}

#[test]
fn failed_requests_of_burst_gpt_are_skipped_and_counted() {
    let text = "Timestamp,Model,Request tokens,Response tokens\n5,a,1,0\n6,a,2,3\n7,a,4,0\n";
    let (rows, skipped) = read(text, TraceFormat::Auto).unwrap();
    assert_eq!((rows.len(), skipped), (1, 2));
    assert_eq!(rows[0].arrival_s, 0.0);
}

#[test]
fn mooncake_lines_keep_their_hashes() {
    let text = "{\"timestamp\": 27482, \"input_length\": 1025, \"output_length\": 52, \"hash_ids\": [46, 47, 2353]}\n\
                {\"timestamp\": 30535, \"input_length\": 600, \"output_length\": 26, \"hash_ids\": [46]}\n";
    let (rows, _) = read(text, TraceFormat::Auto).unwrap();
    assert_eq!(rows[0].hash_ids, [46, 47, 2353]);
    assert!((rows[1].arrival_s - 3.053).abs() < 1e-9);
}

#[test]
fn bad_traces_are_refused_with_line_and_cause() {
    fails("", &["empty"]);
    fails("\n\n", &["empty"]);
    fails("arrival_s,input_tokens,output_tokens\n", &["no requests"]);
    fails("a,b,c\n1,2,3\n", &["t:1", "format", "arrival_s"]);
    let header = "arrival_s,input_tokens,output_tokens\n";
    for (row, words) in [
        ("5,1,1\n4,1,1\n", ["t:3", "not sorted"]),
        ("0,-1,1\n", ["t:2", "column `input_tokens`"]),
        ("0,nan,1\n", ["t:2", "expected a number"]),
        ("0,1.5,1\n", ["t:2", "whole number"]),
        ("0,1,99999999999\n", ["t:2", "whole number"]),
        ("inf,1,1\n", ["t:2", "expected a number"]),
        (
            "0,1\n",
            [
                "t:2",
                "column `output_tokens`: expected a number, got nothing",
            ],
        ),
        ("0,1,1\n1e300,1,1\n", ["t:3", "100 years"]),
        (
            "x,1,1\n",
            ["t:2", "column `arrival_s`: expected a number, got \"x\""],
        ),
        ("0,1e300,1\n", ["t:2", "got 1e300"]),
    ] {
        fails(&format!("{header}{row}"), &words);
    }
    fails(
        "arrival_s,input_tokens\n1,2\n",
        &["t:1", "no column `output_tokens`"],
    );
    fails("{\"timestamp\": 1}\n", &["t:1", "input_length"]);
    fails(
        "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 5, \"hash_ids\": [1, 2]}\n",
        &["t:1", "2 hashes", "1 block"],
    );
    fails(
        "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n",
        &["t:2", "TIMESTAMP"],
    );
}

#[test]
fn calendar_times_are_seconds_of_the_unix_epoch() {
    assert_eq!(calendar_seconds("1970-01-01 00:00:00"), Some(0.0));
    assert_eq!(
        calendar_seconds("2000-03-01T00:00:00Z"),
        Some(951_868_800.0)
    );
    assert_eq!(
        calendar_seconds("2023-11-16 18:15:46.5"),
        Some(1_700_158_546.5)
    );
    assert_eq!(calendar_seconds("1970-01-01 02:00:00+02:00"), Some(0.0));
    for bad in [
        "",
        "2023",
        "2023-13-01 00:00:00",
        "2023-11-16",
        "2023-11-16 25:00:00",
        "a-b-c d:e:f",
    ] {
        assert_eq!(calendar_seconds(bad), None, "{bad}");
    }
}

/// A trace of each format to start mutating from.
const SEEDS: [&str; 6] = [
    "arrival_s,input_tokens,output_tokens\n0.0,374,44\n4.3,396,109\n9.1,879,55\n",
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n\
     2024-05-10 00:00:00.009930+00:00,396,109\n",
    "Timestamp,Model,Request tokens,Response tokens\n5,ChatGPT,\"472\",18\n45,GPT-4,1087,0\n",
    "{\"timestamp\": 0, \"input_length\": 900, \"output_length\": 50, \"hash_ids\": [0, 1]}\n\
     {\"timestamp\": 40, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [0]}\n",
    "{\"input_lens\": [396, 374], \"output_lens\": [109, 44], \"start_times\": [104.5, 100.0], \"errors\": [\"\", \"\"]}",
    "{\"benchmarks\": [{\"requests\": {\"successful\": [{\"prompt_tokens\": 3, \"output_tokens\": 4, \"request_start_time\": 1.0}]}}]}",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn mutated_traces_never_panic(
        seed in 0usize..6,
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..5), 1..10),
    ) {
        let mut bytes = SEEDS[seed].as_bytes().to_vec();
        for (at, byte, how) in cuts {
            if bytes.is_empty() {
                break;
            }
            let i = at.index(bytes.len());
            match how {
                0 => bytes[i] = byte,
                1 => bytes.insert(i, byte),
                2 => {
                    bytes.remove(i);
                }
                3 => bytes.splice(i..i, [b'9'; 20]).for_each(drop),
                _ => bytes.truncate(i),
            }
        }
        for format in [
            TraceFormat::Auto,
            TraceFormat::Azure,
            TraceFormat::Mooncake,
            TraceFormat::BurstGpt,
            TraceFormat::Csv,
            TraceFormat::Records,
            TraceFormat::Vidur,
            TraceFormat::Aiperf,
            TraceFormat::VllmBench,
            TraceFormat::Guidellm,
        ] {
            let read = Lines::from_reader(Box::new(std::io::Cursor::new(bytes.clone())), "t")
                .and_then(|lines| TraceReader::new(lines, format))
                .and_then(check_reader);
            if let Ok(summary) = read {
                prop_assert!(summary.rows > 0);
                prop_assert!(summary.prompt_tokens >= summary.rows);
            }
        }
    }

    #[test]
    fn any_bytes_at_all_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Lines::from_reader(Box::new(std::io::Cursor::new(bytes)), "t")
            .and_then(|lines| TraceReader::new(lines, TraceFormat::Auto))
            .and_then(check_reader);
    }
}
