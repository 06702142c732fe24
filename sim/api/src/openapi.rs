//! The service's description for machines: OpenAPI 3.1, with the schemas of the types that are sent and answered.

use planner::capacity::CapacityTable;
use planner::whatif::WhatIf;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};
use sim::report::RunReport;

use crate::answer::{Health, JobList, MOST_WAIT_S};
use crate::jobs::JobView;
use crate::problem::ErrorBody;
use crate::request::{CapacityRequest, PlanRequest, RunRequest, WhatIfRequest};
use crate::work::PlanResult;

/// The document.
pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| {
        s.definitions_path = "/components/schemas".into();
    });
    let mut g = settings.into_generator();
    let mut paths = Map::new();
    paths.insert("/health".into(), json!({"get": get_health(&mut g)}));
    paths.insert("/openapi.json".into(), json!({"get": {
        "operationId": "getOpenApi",
        "summary": "This document",
        "security": [],
        "responses": {"200": {"description": "OpenAPI 3.1", "content": {"application/json": {}}}},
    }}));
    let posts = [
        (
            "/v1/plan",
            post::<PlanRequest>(
                &mut g,
                "plan",
                "What to deploy for a load within its objectives, and for how much",
            ),
        ),
        (
            "/v1/run",
            post::<RunRequest>(&mut g, "run", "What the users of a scenario would see"),
        ),
        (
            "/v1/whatif",
            post::<WhatIfRequest>(
                &mut g,
                "whatif",
                "Each single change of a scenario worth trying, ranked",
            ),
        ),
        (
            "/v1/capacity",
            post::<CapacityRequest>(&mut g, "capacity", "How many replicas each load takes"),
        ),
    ];
    for (path, operation) in posts {
        paths.insert(path.into(), json!({"post": operation}));
    }
    paths.insert(
        "/v1/jobs".into(),
        json!({"get": {
            "operationId": "listJobs",
            "summary": "All jobs, the oldest first",
            "responses": answers(&mut g, &[("200", "The jobs", schema::<JobList>)], &["401"]),
        }}),
    );
    paths.insert("/v1/jobs/{id}".into(), one_job(&mut g));
    paths.insert("/v1/jobs/{id}/result".into(), one_result(&mut g));
    let schemas: Map<String, Value> = g.take_definitions(true);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "servetwin",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Plans, runs, what-ifs and capacity tables of LLM serving clusters. A POST takes a job on: it answers 202 with the job's path, \
                            which tells its progress and where its result is.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "Where the service was started with --api-key"}},
        },
        "security": [{}, {"key": []}],
    })
}

/// A reference to the schema of a type, which goes among the document's own.
fn schema<T: JsonSchema>(g: &mut SchemaGenerator) -> Value {
    g.subschema_for::<T>().to_value()
}

type Schema = fn(&mut SchemaGenerator) -> Value;

/// Answers by status: those given, and errors.
fn answers(g: &mut SchemaGenerator, good: &[(&str, &str, Schema)], errors: &[&str]) -> Value {
    let mut out = Map::new();
    for (status, what, of) in good {
        let content = json!({"application/json": {"schema": of(g)}});
        out.insert(
            (*status).into(),
            json!({"description": what, "content": content}),
        );
    }
    for status in errors {
        let what = match *status {
            "400" => "The body or the query is none of this service",
            "401" => "No key, or a wrong one",
            "404" => "There is no such job, or none any more",
            "408" => "The body took too long to arrive",
            "409" => "The job has not ended, or was cancelled",
            "413" => "The body is too large",
            "415" => "The body does not say that it is JSON",
            "422" => "The scenario or question is wrong, or the job took too long",
            "429" => "As many jobs wait as may",
            "500" => "A defect of the service",
            _ => "The service is shutting down",
        };
        let content = json!({"application/json": {"schema": schema::<ErrorBody>(g)}});
        out.insert(
            (*status).into(),
            json!({"description": what, "content": content}),
        );
    }
    Value::Object(out)
}

fn get_health(g: &mut SchemaGenerator) -> Value {
    json!({
        "operationId": "getHealth",
        "summary": "Whether the service takes jobs",
        "security": [],
        "responses": answers(g, &[("200", "It does", schema::<Health>), ("503", "It is shutting down", schema::<Health>)], &[]),
    })
}

fn post<T: JsonSchema>(g: &mut SchemaGenerator, name: &str, summary: &str) -> Value {
    let content = json!({"application/json": {"schema": schema::<T>(g)}});
    let mut responses = answers(
        g,
        &[("202", "The job was taken", schema::<JobView>)],
        &["400", "401", "408", "413", "415", "429", "503"],
    );
    responses["202"]["headers"] =
        json!({"Location": {"description": "Path of the job", "schema": {"type": "string"}}});
    json!({
        "operationId": name,
        "summary": summary,
        "requestBody": {"required": true, "content": content},
        "responses": responses,
    })
}

fn id() -> Value {
    json!({"name": "id", "in": "path", "required": true, "schema": {"type": "string"}})
}

fn one_job(g: &mut SchemaGenerator) -> Value {
    let wait = json!({
        "name": "wait",
        "in": "query",
        "description": "Answer when the job has ended, or after so many seconds",
        "schema": {"type": "number", "minimum": 0, "maximum": MOST_WAIT_S},
    });
    let mut delete = answers(
        g,
        &[("200", "It will end as cancelled", schema::<JobView>)],
        &["401", "404"],
    );
    delete["204"] = json!({"description": "It had ended, and was forgotten"});
    json!({
        "get": {
            "operationId": "getJob",
            "summary": "How far a job is",
            "parameters": [id(), wait],
            "responses": answers(g, &[("200", "The job", schema::<JobView>)], &["400", "401", "404"]),
        },
        "delete": {
            "operationId": "deleteJob",
            "summary": "Cancels a job that has not ended, and forgets one that has",
            "parameters": [id()],
            "responses": delete,
        },
    })
}

fn one_result(g: &mut SchemaGenerator) -> Value {
    let kinds: Vec<Value> = vec![
        schema::<PlanResult>(g),
        schema::<RunReport>(g),
        schema::<WhatIf>(g),
        schema::<CapacityTable>(g),
    ];
    let mut responses = answers(g, &[], &["401", "404", "409", "422", "500"]);
    let content = json!({"application/json": {"schema": {"anyOf": kinds}}});
    responses["200"] = json!({"description": "The result: of a plan, a run, a what-if, a capacity table", "content": content});
    json!({"get": {
        "operationId": "getResult",
        "summary": "The result of a job, or why there is none",
        "parameters": [id()],
        "responses": responses,
    }})
}
