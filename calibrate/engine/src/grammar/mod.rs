//! Structured output: which tokens may come next so that the text stays within a JSON schema, a regular expression or a
//! list of choices.
//!
//! A [`Constraint`] becomes a context-free grammar over bytes: `schema.rs` makes it of a JSON schema, `regex.rs` of a
//! regular expression. A [`Matcher`] follows one output through it. Its state is the set of all ways in which the bytes so far can
//! have been read, each a stack of what must still follow; `{"a":` leaves for example `value`, then `}`. States and their
//! transitions are kept as they are met, as a regular expression's automaton is built lazily, so that the vocabulary is
//! walked by table look-ups.

pub mod json;
mod mask;
mod regex;
mod schema;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

pub use mask::{Mask, TooAmbiguous, Vocabulary};

/// Most nodes of a grammar: what a client may make the server compile.
const MAX_NODES: usize = 200_000;
/// Most stacks that are looked at for one transition.
const MAX_STACKS: usize = 20_000;
/// Most stacks that are looked at for one token: what a client may make the replica's thread do.
const MAX_WORK: usize = 500_000;
/// States after which a matcher forgets all but its current one.
const MAX_STATES: usize = 4096;

/// Index of a node.
type NodeId = u32;

/// What an output may look like.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// Any JSON object.
    Object {
        /// Whether whitespace may stand between its parts.
        whitespace: bool,
    },
    /// JSON that this schema describes.
    Schema {
        /// The schema, its properties in their order.
        schema: json::Json,
        /// Whether whitespace may stand between its parts.
        whitespace: bool,
    },
    /// Text that this regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// A part of a grammar.
#[derive(Clone, Debug)]
enum Node {
    /// One byte within one of these ranges.
    Byte(Vec<(u8, u8)>),
    /// All of them, one after the other.
    Seq(Vec<NodeId>),
    /// One of them.
    Alt(Vec<NodeId>),
    /// The same several times.
    Repeat {
        of: NodeId,
        min: u32,
        max: Option<u32>,
    },
}

/// A compiled constraint.
#[derive(Debug)]
struct Grammar {
    nodes: Vec<Node>,
    root: NodeId,
}

impl Constraint {
    /// A matcher at the beginning of a text that keeps to the constraint.
    ///
    /// # Errors
    /// What is wrong with the constraint, or not supported, and where.
    pub fn matcher(&self) -> Result<Matcher, String> {
        let mut builder = Builder::default();
        let root = match self {
            Constraint::Object { whitespace } => schema::any_object(&mut builder, *whitespace)?,
            Constraint::Schema { schema, whitespace } => {
                schema::compile(&mut builder, schema, *whitespace)?
            }
            Constraint::Regex(pattern) => regex::whole(&mut builder, pattern)?,
            Constraint::Choice(texts) => {
                let texts = texts.iter().map(|t| builder.text(t)).collect();
                builder.add(Node::Alt(texts))
            }
        };
        builder.check()?;
        let grammar = Arc::new(Grammar {
            nodes: builder.nodes,
            root,
        });
        match Matcher::new(grammar) {
            Err(TooAmbiguous) => Err("it can be read in too many ways".into()),
            Ok(m) if m.states[m.current as usize].stacks.is_empty() => {
                Err("it describes no text".into())
            }
            Ok(m) => Ok(m),
        }
    }
}

/// Nodes while a grammar is made.
#[derive(Default)]
struct Builder {
    nodes: Vec<Node>,
}

impl Builder {
    fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        self.nodes.len() as NodeId - 1
    }

    /// Refuses to go on once there are too many nodes; asked wherever much can come of little.
    fn check(&self) -> Result<(), String> {
        if self.nodes.len() > MAX_NODES {
            return Err(format!("it needs more than {MAX_NODES} grammar nodes"));
        }
        Ok(())
    }

    fn empty(&mut self) -> NodeId {
        self.add(Node::Seq(Vec::new()))
    }

    fn text(&mut self, text: &str) -> NodeId {
        let bytes = text
            .bytes()
            .map(|b| self.add(Node::Byte(vec![(b, b)])))
            .collect();
        self.add(Node::Seq(bytes))
    }

    fn optional(&mut self, of: NodeId) -> NodeId {
        self.add(Node::Repeat {
            of,
            min: 0,
            max: Some(1),
        })
    }
}

/// The top of a stack: a node with how much of it is done, above what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Frame {
    node: NodeId,
    /// Parts of a sequence, or repetitions, that are done.
    done: u32,
    /// The stack below; [`BOTTOM`]: nothing.
    below: u32,
}

/// The empty stack: the grammar has been matched.
const BOTTOM: u32 = 0;
/// A transition that has not been worked out.
const UNKNOWN: u32 = u32::MAX;
/// No way goes on.
const DEAD: u32 = u32::MAX - 1;

/// All ways in which the bytes so far can have been read.
#[derive(Clone, Debug)]
struct State {
    /// Stacks that await a byte.
    stacks: Vec<u32>,
    /// Whether the text may end here.
    complete: bool,
    next: Box<[u32; 256]>,
    mask: Option<Arc<Mask>>,
}

/// Follows one output through a grammar.
#[derive(Clone, Debug)]
pub struct Matcher {
    grammar: Arc<Grammar>,
    /// Stacks, each by its top; the first stands for [`BOTTOM`].
    frames: Vec<Frame>,
    frame_ids: HashMap<Frame, u32>,
    states: Vec<State>,
    state_ids: HashMap<(Vec<u32>, bool), u32>,
    current: u32,
    /// Stacks looked at for the token at hand.
    work: usize,
}

impl Matcher {
    fn new(grammar: Arc<Grammar>) -> Result<Matcher, TooAmbiguous> {
        let root = grammar.root;
        let mut m = Matcher {
            grammar,
            frames: Vec::new(),
            frame_ids: HashMap::new(),
            states: Vec::new(),
            state_ids: HashMap::new(),
            current: 0,
            work: 0,
        };
        m.forget();
        let start = m.push(root, 0, BOTTOM);
        m.current = m.state_of(vec![start])?;
        Ok(m)
    }

    /// Whether the text may end here.
    pub fn is_complete(&self) -> bool {
        self.states[self.current as usize].complete
    }

    /// Takes in the bytes of a token. False: they do not fit, and nothing is taken in.
    ///
    /// # Errors
    /// See [`TooAmbiguous`].
    pub fn accept(&mut self, bytes: &[u8]) -> Result<bool, TooAmbiguous> {
        self.work = 0;
        let mut state = self.current;
        for &b in bytes {
            match self.step(state, b)? {
                Some(next) => state = next,
                None => return Ok(false),
            }
        }
        self.current = state;
        Ok(true)
    }

    /// The tokens of `vocabulary` that may come next.
    ///
    /// # Errors
    /// See [`TooAmbiguous`].
    pub fn mask(&mut self, vocabulary: &Vocabulary) -> Result<Arc<Mask>, TooAmbiguous> {
        if self.states.len() > MAX_STATES {
            self.shrink()?;
        }
        let current = self.current;
        if let Some(mask) = &self.states[current as usize].mask {
            return Ok(mask.clone());
        }
        self.work = 0;
        let complete = self.is_complete();
        let mask = Arc::new(vocabulary.mask(complete, current, &mut |s, b| self.step(s, b))?);
        self.states[current as usize].mask = Some(mask.clone());
        Ok(mask)
    }

    fn forget(&mut self) {
        self.frames.clear();
        self.frame_ids.clear();
        self.states.clear();
        self.state_ids.clear();
        self.frames.push(Frame {
            node: NodeId::MAX,
            done: 0,
            below: BOTTOM,
        });
    }

    /// Forgets all states but the current one.
    fn shrink(&mut self) -> Result<(), TooAmbiguous> {
        let old = std::mem::take(&mut self.frames);
        let state = &self.states[self.current as usize];
        let (stacks, complete) = (state.stacks.clone(), state.complete);
        self.forget();
        let mut moved = Vec::with_capacity(stacks.len());
        for mut stack in stacks {
            let mut frames = Vec::new();
            while stack != BOTTOM {
                let f = old[stack as usize];
                frames.push((f.node, f.done));
                stack = f.below;
            }
            let push = |below, (node, done): (NodeId, u32)| self.push(node, done, below);
            moved.push(frames.into_iter().rev().fold(BOTTOM, push));
        }
        if complete {
            moved.push(BOTTOM);
        }
        self.current = self.state_of(moved)?;
        Ok(())
    }

    fn push(&mut self, node: NodeId, done: u32, below: u32) -> u32 {
        let frame = Frame { node, done, below };
        *self.frame_ids.entry(frame).or_insert_with(|| {
            self.frames.push(frame);
            self.frames.len() as u32 - 1
        })
    }

    /// The state after `byte`; none: the byte does not fit.
    fn step(&mut self, state: u32, byte: u8) -> Result<Option<u32>, TooAmbiguous> {
        let s = &self.states[state as usize];
        let known = s.next[byte as usize];
        if known != UNKNOWN {
            return Ok((known != DEAD).then_some(known));
        }
        let fits = |stack: &&u32| {
            let node = self.frames[**stack as usize].node;
            matches!(&self.grammar.nodes[node as usize],
                Node::Byte(ranges) if ranges.iter().any(|r| (r.0..=r.1).contains(&byte)))
        };
        let after: Vec<u32> = s
            .stacks
            .iter()
            .filter(fits)
            .map(|&stack| self.frames[stack as usize].below)
            .collect();
        let next = if after.is_empty() {
            DEAD
        } else {
            self.state_of(after)?
        };
        self.states[state as usize].next[byte as usize] = next;
        Ok((next != DEAD).then_some(next))
    }

    /// The state in which any of `stacks` comes next.
    fn state_of(&mut self, mut open: Vec<u32>) -> Result<u32, TooAmbiguous> {
        let grammar = self.grammar.clone();
        let mut seen = HashSet::new();
        let (mut stacks, mut complete) = (Vec::new(), false);
        while let Some(stack) = open.pop() {
            if !seen.insert(stack) {
                continue;
            }
            self.work += 1;
            if seen.len() > MAX_STACKS || self.work > MAX_WORK {
                return Err(TooAmbiguous);
            }
            if stack == BOTTOM {
                complete = true;
                continue;
            }
            let Frame { node, done, below } = self.frames[stack as usize];
            match &grammar.nodes[node as usize] {
                Node::Byte(_) => stacks.push(stack),
                Node::Alt(of) => open.extend(of.iter().map(|&n| self.push(n, 0, below))),
                Node::Seq(of) => match of.get(done as usize) {
                    None => open.push(below),
                    Some(&n) => {
                        // What stands last leaves nothing of the sequence behind, so that stacks stay flat.
                        let rest = if done as usize + 1 < of.len() {
                            self.push(node, done + 1, below)
                        } else {
                            below
                        };
                        open.push(self.push(n, 0, rest));
                    }
                },
                &Node::Repeat { of, min, max } => {
                    if done >= min {
                        open.push(below);
                    }
                    if max.is_none_or(|m| done < m) {
                        // Without a limit, counting ends with `min`.
                        let more = if max.is_some() {
                            done + 1
                        } else {
                            min.min(done + 1)
                        };
                        let rest = self.push(node, more, below);
                        open.push(self.push(of, 0, rest));
                    }
                }
            }
        }
        stacks.sort_unstable();
        let key = (stacks, complete);
        if let Some(&id) = self.state_ids.get(&key) {
            return Ok(id);
        }
        let id = self.states.len() as u32;
        self.states.push(State {
            stacks: key.0.clone(),
            complete,
            next: Box::new([UNKNOWN; 256]),
            mask: None,
        });
        self.state_ids.insert(key, id);
        Ok(id)
    }
}

#[cfg(test)]
mod tests;
