//! Which program a command starts, through the wrappers it stands in: `docker run`, `sh -c`, `python -m`, `mpirun`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::draft::{Draft, Origin};
use super::{guidellm, load, perf, sglang, tgi, trtllm, vllm};
use crate::place::{Fault, Place};
use crate::text::shell::{self, Command, Word};

/// Most shells within shells.
const MAX_SHELLS: usize = 4;

/// A program that is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// vLLM's server.
    Vllm,
    /// vLLM as a worker of NVIDIA Dynamo.
    DynamoVllm,
    /// Text Generation Inference's launcher.
    Tgi,
    /// TensorRT-LLM's server.
    TrtllmServe,
    /// TensorRT-LLM's compiler.
    TrtllmBuild,
    /// TensorRT-LLM's conversion of checkpoints.
    TrtllmConvert,
    /// The launcher of the multi-node Triton chart.
    TritonLauncher,
    /// TensorRT-LLM as a worker of NVIDIA Dynamo.
    DynamoTrtllm,
    /// SGLang's server.
    Sglang,
    /// SGLang as a worker of NVIDIA Dynamo.
    DynamoSglang,
    /// vLLM's load generator.
    VllmBench,
    /// NVIDIA's NIM, whose image is the model's.
    Nim,
    /// GuideLLM.
    GuideLlm,
    /// AIPerf.
    AiPerf,
    /// GenAI-Perf.
    GenAiPerf,
}

/// A container, or a process outside of one: what it runs and with which variables.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// The image, and where it was written.
    pub image: Option<(String, Place)>,
    /// Program and arguments. Without `entrypoint` the image's own program gets them.
    pub words: Vec<Word>,
    /// Whether the first word is the program, whatever the image starts by itself.
    pub entrypoint: bool,
    /// Variables with their values.
    pub variables: Vec<(String, Origin)>,
}

/// The program that words start, and its arguments.
pub fn program(words: &[Word]) -> Option<(Program, &[Word])> {
    let mut words = words;
    for _ in 0..8 {
        let text = |i: usize| words.get(i).map_or("", |w| w.text.as_str());
        let name = text(0).rsplit('/').next().unwrap_or("");
        let (found, skip) = match name {
            // Words of the shell before a command, and programs that run another.
            "sudo"
            | "exec"
            | "nohup"
            | "time"
            | "trtllm-llmapi-launch"
            | "then"
            | "do"
            | "else"
            | "!" => (None, 1),
            "env" => {
                let settings = words[1..]
                    .iter()
                    .take_while(|w| w.text.contains('='))
                    .count();
                (None, 1 + settings)
            }
            "uv" | "poetry" | "pipenv" if text(1) == "run" => (None, 2),
            "mpirun" | "mpiexec" | "torchrun" | "srun" | "numactl" | "timeout" | "stdbuf"
            | "tini" | "dumb-init" => {
                return (1..words.len())
                    .find_map(|i| program(&words[i..]).filter(|_| !text(i).starts_with('-')));
            }
            "vllm" if text(1) == "serve" => (Some(Program::Vllm), 2),
            "vllm" if text(1) == "bench" && text(2) == "serve" => (Some(Program::VllmBench), 3),
            "text-generation-launcher" => (Some(Program::Tgi), 1),
            "trtllm-serve" if text(1) == "serve" => (Some(Program::TrtllmServe), 2),
            "trtllm-serve" => (Some(Program::TrtllmServe), 1),
            "trtllm-build" => (Some(Program::TrtllmBuild), 1),
            "sglang" if text(1) == "serve" => (Some(Program::Sglang), 2),
            "guidellm" => {
                let subcommand = matches!(text(1), "benchmark" | "run");
                let run = subcommand && text(2) == "run";
                (
                    Some(Program::GuideLlm),
                    1 + usize::from(subcommand) + usize::from(run),
                )
            }
            "aiperf" => (Some(Program::AiPerf), 1 + usize::from(text(1) == "profile")),
            "genai-perf" => (
                Some(Program::GenAiPerf),
                1 + usize::from(text(1) == "profile"),
            ),
            name if name.starts_with("python") => {
                let flags = words[1..]
                    .iter()
                    .take_while(|w| matches!(w.text.as_str(), "-u" | "-O" | "-B"))
                    .count();
                let at = 1 + flags;
                match text(at) {
                    "-m" => (module(text(at + 1)), at + 2),
                    script => (self::script(script), at + 1),
                }
            }
            name => (script(name), 1),
        };
        if let Some(found) = found {
            return Some((found, words.get(skip..).unwrap_or(&[])));
        }
        let wrapper = matches!(
            name,
            "sudo"
                | "exec"
                | "nohup"
                | "time"
                | "trtllm-llmapi-launch"
                | "env"
                | "uv"
                | "poetry"
                | "pipenv"
                | "then"
                | "do"
                | "else"
                | "!"
        );
        if !wrapper {
            return None;
        }
        words = words.get(skip..).filter(|rest| !rest.is_empty())?;
    }
    None
}

fn module(name: &str) -> Option<Program> {
    Some(match name {
        "vllm.entrypoints.openai.api_server" | "vllm.entrypoints.api_server" => Program::Vllm,
        "dynamo.vllm" => Program::DynamoVllm,
        "dynamo.trtllm" => Program::DynamoTrtllm,
        "sglang.launch_server" => Program::Sglang,
        "dynamo.sglang" => Program::DynamoSglang,
        "tensorrt_llm.commands.build" => Program::TrtllmBuild,
        "tensorrt_llm.commands.serve" => Program::TrtllmServe,
        "vllm.benchmarks.serve" => Program::VllmBench,
        _ => return None,
    })
}

fn script(path: &str) -> Option<Program> {
    Some(match path.rsplit('/').next().unwrap_or("") {
        "benchmark_serving.py" => Program::VllmBench,
        "convert_checkpoint.py" => Program::TrtllmConvert,
        "server.py" => Program::TritonLauncher,
        _ => return None,
    })
}

/// The program that an image starts by itself.
fn of_image(image: &str) -> Option<Program> {
    let name = image.split(['@']).next().unwrap_or(image);
    let name = name
        .rsplit_once(':')
        .map_or(name, |(n, tag)| if tag.contains('/') { image } else { n });
    let base = name.rsplit('/').next().unwrap_or(name);
    if name.contains("/nim/") {
        return Some(Program::Nim);
    }
    if base.contains("text-generation-inference") || base.contains("tgi-inference") {
        return Some(Program::Tgi);
    }
    // Routers and front ends stand before engines.
    if ["router", "frontend", "gateway"]
        .iter()
        .any(|w| base.contains(w))
    {
        return None;
    }
    let engine = |name: &str| base.contains(name);
    if engine("vllm") || base == "llm-d" || base.starts_with("llm-d-cuda") {
        return Some(Program::Vllm);
    }
    base.contains("sglang").then_some(Program::Sglang)
}

/// Imports the commands of a script; how many were understood.
pub fn script_of(commands: &[Command], file: &Arc<str>, draft: &mut Draft) -> usize {
    commands
        .iter()
        .filter(|c| {
            let process = Process {
                words: c.words.clone(),
                entrypoint: true,
                variables: (c.variables.iter())
                    .map(|(name, w)| {
                        (
                            name.clone(),
                            Origin::new(Place::new(file, w.line), name.clone(), w.text.clone()),
                        )
                    })
                    .collect(),
                ..Process::default()
            };
            run(&process, file, draft, 0)
        })
        .count()
}

/// Imports what a process runs; whether that is understood.
pub fn run(process: &Process, file: &Arc<str>, draft: &mut Draft, shells: usize) -> bool {
    let words = &process.words;
    let text = |i: usize| words.get(i).map_or("", |w| w.text.as_str());
    let name = text(0).rsplit('/').next().unwrap_or("");
    if process.entrypoint {
        if matches!(name, "sh" | "bash" | "ash" | "zsh")
            && let Some(at) = words
                .iter()
                .position(|w| w.text.starts_with('-') && w.text.ends_with('c'))
            && let Some(script) = words.get(at + 1)
        {
            return nested(process, script, file, draft, shells);
        }
        if matches!(name, "docker" | "podman" | "nerdctl") && text(1) == "run" {
            let inner = container(&words[2..], process, file, draft);
            return run(&inner, file, draft, shells);
        }
    }
    let image = process.image.as_ref().map(|(i, p)| (i.as_str(), p.clone()));
    if process.entrypoint
        && matches!(name, "pip" | "pip3" | "uv")
        && words.iter().any(|w| w.text == "install")
    {
        vllm::installed(words, file, draft);
        sglang::installed(words, file, draft);
        return false;
    }
    let found = program(words).or_else(|| {
        let (name, _) = process.image.as_ref().filter(|_| !process.entrypoint)?;
        Some((of_image(name)?, words.as_slice()))
    });
    let Some((program, rest)) = found else {
        return false;
    };
    if program != Program::Tgi {
        for (name, origin) in &process.variables {
            super::env::other(name, origin, &super::env::TABLE, draft);
        }
    }
    match program {
        Program::Vllm => vllm::import(rest, file, image, draft),
        Program::DynamoVllm => vllm::dynamo(rest, file, draft),
        Program::Tgi => tgi::import(rest, &process.variables, file, image, draft),
        Program::TrtllmServe => trtllm::serve(rest, file, draft),
        Program::DynamoTrtllm => trtllm::dynamo(rest, file, draft),
        Program::TrtllmBuild => trtllm::build(rest, file, draft),
        Program::TrtllmConvert => trtllm::convert(rest, file, draft),
        Program::TritonLauncher => return trtllm::launcher(rest, file, draft),
        Program::Sglang => sglang::import(rest, file, image, draft),
        Program::DynamoSglang => sglang::dynamo(rest, file, draft),
        Program::VllmBench => load::vllm_bench(rest, file, draft),
        Program::Nim => super::kubeai::nim(process, draft),
        Program::GuideLlm => guidellm::guidellm(rest, file, draft),
        Program::AiPerf => perf::aiperf(rest, file, draft),
        Program::GenAiPerf => perf::genai_perf(rest, file, draft),
    }
    true
}

/// `sh -c '...'`: the script within, with the process's variables.
fn nested(
    process: &Process,
    script: &Word,
    file: &Arc<str>,
    draft: &mut Draft,
    shells: usize,
) -> bool {
    let place = Place::new(file, script.line);
    if shells >= MAX_SHELLS {
        draft.fault(Fault::new(
            place,
            "sh -c",
            format!("more than {MAX_SHELLS} shells within each other"),
        ));
        return true;
    }
    let given = draft.facts.given.clone();
    let known: BTreeMap<String, String> = (given.into_iter())
        .chain(
            process
                .variables
                .iter()
                .map(|(n, o)| (n.clone(), o.raw.clone())),
        )
        .collect();
    match shell::commands(&script.text, script.line, &known) {
        Ok(all) => {
            let mut any = false;
            for command in all {
                let own = command.variables.iter().map(|(name, w)| {
                    (
                        name.clone(),
                        Origin::new(Place::new(file, w.line), name.clone(), w.text.clone()),
                    )
                });
                let inner = Process {
                    image: process.image.clone(),
                    words: command.words.clone(),
                    entrypoint: true,
                    variables: process.variables.iter().cloned().chain(own).collect(),
                };
                any |= run(&inner, file, draft, shells + 1);
            }
            any
        }
        Err(wrong) => {
            draft.fault(Fault::new(
                Place::new(file, wrong.line),
                "sh -c",
                wrong.message,
            ));
            true
        }
    }
}

/// Options of `docker run` without a value.
const DOCKER_FLAGS: [&str; 12] = [
    "-d",
    "--detach",
    "-i",
    "-t",
    "-it",
    "-ti",
    "--rm",
    "--privileged",
    "--init",
    "--interactive",
    "--tty",
    "--read-only",
];

/// `docker run OPTIONS IMAGE ARGS`: the container.
fn container(words: &[Word], outer: &Process, file: &Arc<str>, draft: &mut Draft) -> Process {
    let mut inner = Process {
        variables: outer.variables.clone(),
        ..Process::default()
    };
    let mut words = words.iter().peekable();
    let mut program = None;
    while let Some(word) = words.next_if(|w| w.text.starts_with('-')) {
        if DOCKER_FLAGS.contains(&word.text.as_str()) {
            continue;
        }
        let (name, value) = match word
            .text
            .split_once('=')
            .filter(|_| word.text.starts_with("--"))
        {
            Some((name, value)) => (name, Some((value.to_owned(), word.line))),
            None => (
                word.text.as_str(),
                words.next().map(|w| (w.text.clone(), w.line)),
            ),
        };
        let Some((value, line)) = value else { break };
        let place = Place::new(file, line);
        match name {
            "-e" | "--env" => {
                let (variable, text) = value.split_once('=').unwrap_or((&value, ""));
                inner
                    .variables
                    .push((variable.to_owned(), Origin::new(place, variable, text)));
            }
            "--gpus" => {
                let origin = Origin::new(place, name, value.clone());
                devices(&value, &origin, draft);
            }
            "--entrypoint" => program = Some(Word { text: value, line }),
            _ => {}
        }
    }
    if let Some(image) = words.next() {
        inner.image = Some((image.text.clone(), Place::new(file, image.line)));
    }
    inner.entrypoint = program.is_some();
    inner.words = program.into_iter().chain(words.cloned()).collect();
    inner
}

/// `--gpus all`, `--gpus 2`, `--gpus '"device=0,1"'`.
fn devices(value: &str, origin: &Origin, draft: &mut Draft) {
    let value = value.trim_matches('"');
    let count = match value.strip_prefix("device=") {
        Some(list) => i64::try_from(list.split(',').count()).ok(),
        None => value.parse().ok(),
    };
    match count {
        Some(n) => draft.facts.pod_devices = Some((n, origin.clone())),
        None => draft.used(origin, "all devices of the machine"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<(Program, usize)> {
        let all = shell::commands(text, 1, &BTreeMap::new()).unwrap();
        program(&all[0].words).map(|(p, rest)| (p, rest.len()))
    }

    #[test]
    fn programs_are_found_through_their_wrappers() {
        for (text, expected) in [
            ("vllm serve m --x", Some((Program::Vllm, 2))),
            (
                "sudo env A=1 B=2 python3 -u -m vllm.entrypoints.openai.api_server --model m",
                Some((Program::Vllm, 2)),
            ),
            (
                "mpirun -n 8 --allow-run-as-root trtllm-serve m",
                Some((Program::TrtllmServe, 1)),
            ),
            (
                "guidellm benchmark run --rate 1",
                Some((Program::GuideLlm, 2)),
            ),
            (
                "python benchmarks/benchmark_serving.py --a",
                Some((Program::VllmBench, 1)),
            ),
            (
                "python3 -m sglang.launch_server --model-path m --tp 2",
                Some((Program::Sglang, 4)),
            ),
            ("sglang serve m", Some((Program::Sglang, 1))),
            (
                "python -m dynamo.sglang --model m",
                Some((Program::DynamoSglang, 2)),
            ),
            ("pip install vllm", None),
            ("sudo", None),
        ] {
            assert_eq!(found(text), expected, "{text}");
        }
    }

    #[test]
    fn images_say_what_they_start() {
        assert_eq!(of_image("vllm/vllm-openai:v0.11.0"), Some(Program::Vllm));
        assert_eq!(
            of_image("ghcr.io/huggingface/text-generation-inference:2.4"),
            Some(Program::Tgi)
        );
        assert_eq!(of_image("lmsysorg/sglang:latest"), Some(Program::Sglang));
        assert_eq!(of_image("nginx:1.27"), None);
    }
}
