// The member "mesh" of a manifest: the sizes of the mesh, and which parameters its tensor ranks have divided
// (docs/checkpoint_format.md, "Meshes"). Internal to manifest.cpp.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/manifest.h"

namespace zerorun::checkpoint {

/// The member of a manifest that has a mesh.
nlohmann::json mesh_member(const Manifest& manifest);

/// Sets the mesh and the splits of the parameters, which are there already. Throws UserError if the member
/// contradicts itself, the number of ranks or a parameter.
void read_mesh_member(Manifest& manifest, const nlohmann::json& member, const std::string& place);

}  // namespace zerorun::checkpoint
