//! `[engine]`: which serving engine, with that engine's own parameters.

use hwmodels::EngineKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy;

/// Keys of `[engine]` that every kind has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineCommon {
    /// KV blocks of a replica, in place of what the memory plan finds: a measured or reported number, at least 2.
    /// Default: from the memory plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_blocks: Option<u64>,
}

/// Gives, for each engine kind, its parameters' type.
macro_rules! engines {
    ($($variant:ident: $params:ty, $doc:literal;)*) => {
        /// Parameters of an engine, under its own names.
        #[derive(Clone, Debug, PartialEq)]
        pub enum EngineParams {
            $(#[doc = $doc] $variant($params),)*
        }

        impl EngineParams {
            /// Which engine it is.
            pub fn kind(&self) -> EngineKind {
                match self {
                    $(EngineParams::$variant(_) => EngineKind::$variant,)*
                }
            }

            /// Reads the parameters of `kind` from the keys of `[engine]` that are not common to all.
            pub fn read<'de, D: serde::Deserializer<'de>>(
                kind: EngineKind,
                keys: D,
            ) -> Result<EngineParams, D::Error> {
                #[allow(unreachable_patterns)]
                match kind {
                    $(EngineKind::$variant => <$params>::deserialize(keys).map(EngineParams::$variant),)*
                    other => Err(serde::de::Error::custom(format!("engine {other} is not simulated yet"))),
                }
            }

            /// The parameters as TOML; options without a value are left out.
            pub fn to_table(&self) -> toml::Table {
                let table = match self {
                    $(EngineParams::$variant(p) => toml::Table::try_from(p),)*
                };
                // Plain structs of numbers, booleans and names always serialise.
                table.unwrap_or_default()
            }

            /// JSON schema of the parameters of `kind`.
            pub fn schema(kind: EngineKind, g: &mut schemars::SchemaGenerator) -> schemars::Schema {
                #[allow(unreachable_patterns)]
                match kind {
                    $(EngineKind::$variant => <$params>::json_schema(g),)*
                    _ => false.into(),
                }
            }
        }
    };
}

engines! {
    Tgi: policy::tgi::TgiParams, "Text Generation Inference.";
    TgiNeuron: policy::tgi_neuron::TgiNeuronParams, "Static slots on Neuron devices.";
}
