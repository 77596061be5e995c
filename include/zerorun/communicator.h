// Communicator, and connect(), which joins the other ranks using the environment that a launcher sets.
#pragma once

#include "comm/communicator.h"
#include "comm/rendezvous.h"
