// Communicator, and connect(), which finds the other ranks by the environment variables that a launcher sets.
#pragma once

#include "comm/communicator.h"
#include "comm/connect/rendezvous.h"
#include "comm/mesh.h"
