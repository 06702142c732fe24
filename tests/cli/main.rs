//! The program as its users meet it: commands, their exit codes and messages, what they print and write; and whether documents
//! are what they say. One binary, so that the program is linked once.

mod autoscale;
mod bench;
mod calibrate;
mod calibrate_steps;
mod catalog;
mod common;
mod demo;
mod deploy;
mod docs;
mod hpa;
mod output;
mod planner;
mod record;
mod run;
mod serve;
mod startup;
mod sweeps;
mod tidy;
mod twin;
